package rocketmq

import (
	"errors"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/rlog"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestClientLog(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	var l rlog.Logger = clientLog{zap.New(core)}
	for _, tt := range []struct {
		write func(string, map[string]any)
		want  zapcore.Level
	}{
		{l.Debug, zapcore.DebugLevel},
		{l.Info, zapcore.DebugLevel},
		{l.Warning, zapcore.WarnLevel},
		{l.Error, zapcore.WarnLevel},
		{l.Fatal, zapcore.ErrorLevel}, // and the process goes on
	} {
		tt.write("line", map[string]any{
			"group": "g", "err": errors.New("cause"), "message": "s3cr3t", "messages": []string{"s3cr3t"}, "msg": []byte("s3cr3t"),
		})
		entries := logs.TakeAll()
		require.Len(t, entries, 1)
		require.Equal(t, tt.want, entries[0].Level)
		require.Equal(t, "line", entries[0].Message)
		require.Equal(t, map[string]any{
			"group": "g", "err": "cause", "message": "(body left out)", "messages": "(body left out)", "msg": "(body left out)",
		}, entries[0].ContextMap())
	}
	l.Info("", map[string]any{"group": "g"})
	l.Info("no fields", nil)
	require.Equal(t, 1, logs.Len(), "a line without text says nothing")
	l.Level("error")
	require.NoError(t, l.OutputPath("/dev/null"))
}
