package database

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// gormLog writes what gorm has to say to zap. It never logs parameter values, and it logs no errors: they are
// returned, and whoever handles one logs it.
type gormLog struct {
	log  *zap.Logger
	slow time.Duration
}

func (l gormLog) LogMode(logger.LogLevel) logger.Interface { return l }

func (l gormLog) Info(_ context.Context, msg string, _ ...any)  { l.log.Debug(msg) }
func (l gormLog) Warn(_ context.Context, msg string, _ ...any)  { l.log.Warn(msg) }
func (l gormLog) Error(_ context.Context, msg string, _ ...any) { l.log.Warn(msg) }

func (l gormLog) Trace(_ context.Context, begin time.Time, fc func() (string, int64), err error) {
	took := time.Since(begin)
	if took < l.slow || errors.Is(err, gorm.ErrRecordNotFound) {
		return
	}
	query, rows := fc()
	l.log.Warn("slow statement", zap.String("sql", query), zap.Int64("rows", rows), zap.Duration("took", took))
}

// ParamsFilter keeps parameter values out of the statements that gorm hands to Trace.
func (l gormLog) ParamsFilter(_ context.Context, sql string, _ ...any) (string, []any) {
	return sql, nil
}
