package enginetest

import (
	"testing"

	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
)

func TestMain(m *testing.M) { rocketmqtest.Main(m) }
