package httpapi

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewServerHasEveryLimit(t *testing.T) {
	srv := NewServer(http.NotFoundHandler())
	require.NotNil(t, srv.Handler)
	require.Positive(t, srv.ReadHeaderTimeout)
	require.Positive(t, srv.ReadTimeout)
	require.Positive(t, srv.IdleTimeout)
	require.Positive(t, srv.MaxHeaderBytes)
	require.Greater(t, srv.WriteTimeout, srv.ReadTimeout+defaultRequestTimeout, "a slow request still gets its answer")
}
