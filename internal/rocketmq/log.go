package rocketmq

import (
	"maps"
	"slices"

	"go.uber.org/zap"
)

// clientLog hands the client's log lines to zap. The client logs whole message bodies at ERROR, writes routine
// lines at INFO every few seconds, and ends the process at FATAL: bodies are left out, INFO becomes DEBUG, and
// FATAL becomes ERROR.
type clientLog struct{ log *zap.Logger }

func (l clientLog) Debug(msg string, f map[string]any)   { l.write(l.log.Debug, msg, f) }
func (l clientLog) Info(msg string, f map[string]any)    { l.write(l.log.Debug, msg, f) }
func (l clientLog) Warning(msg string, f map[string]any) { l.write(l.log.Warn, msg, f) }
func (l clientLog) Error(msg string, f map[string]any)   { l.write(l.log.Warn, msg, f) }
func (l clientLog) Fatal(msg string, f map[string]any)   { l.write(l.log.Error, msg, f) }
func (l clientLog) Level(string)                         {}
func (l clientLog) OutputPath(string) error              { return nil }

// rollbackNoise is what the client says at ERROR whenever a local transaction did not commit. Whoever called
// PublishInTx knows.
const rollbackNoise = "executeLocalTransaction but state unexpected"

func (l clientLog) write(to func(string, ...zap.Field), msg string, f map[string]any) {
	if msg == "" {
		return
	}
	if msg == rollbackNoise {
		to = l.log.Debug
	}
	fields := make([]zap.Field, 0, len(f))
	for _, key := range slices.Sorted(maps.Keys(f)) {
		switch key {
		case "message", "messages", "msg":
			fields = append(fields, zap.String(key, "(body left out)"))
		default:
			fields = append(fields, zap.Any(key, f[key]))
		}
	}
	to(msg, fields...)
}
