package httpapi

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ReleaseMode()
	goleak.VerifyTestMain(m)
}
