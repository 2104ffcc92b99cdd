package outbox

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// logRecorder keeps what is logged as a warning or worse.
type logRecorder struct{ logs []*observer.ObservedLogs }

func (r *logRecorder) logger() *zap.Logger {
	core, logs := observer.New(zapcore.WarnLevel)
	r.logs = append(r.logs, logs)
	return zap.New(core)
}

func (r *logRecorder) warnings() (all []string) {
	for _, l := range r.logs {
		for _, e := range l.All() {
			text := e.Message
			if err, ok := e.ContextMap()["error"].(string); ok {
				text += ": " + err
			}
			all = append(all, text)
		}
	}
	return all
}
