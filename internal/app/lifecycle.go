package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// step is a named part of starting or stopping.
type step struct {
	name string
	run  func(ctx context.Context) error
}

// lifecycle starts steps in order and stops them last in, first out.
type lifecycle struct {
	starts []step
	stops  []step
}

func (l *lifecycle) onStart(name string, run func() error) {
	l.starts = append(l.starts, step{name, func(context.Context) error { return run() }})
}

func (l *lifecycle) onStop(name string, run func(ctx context.Context) error) {
	l.stops = append(l.stops, step{name, run})
}

func (l *lifecycle) start() error {
	for _, s := range l.starts {
		if err := s.run(context.Background()); err != nil {
			return fmt.Errorf("start %s: %w", s.name, err)
		}
	}
	return nil
}

// stop runs every stop, whatever the others return, once.
func (l *lifecycle) stop(ctx context.Context) error {
	var errs []error
	for _, s := range slices.Backward(l.stops) {
		if err := s.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
		}
	}
	l.stops = nil
	return errors.Join(errs...)
}
