package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WithoutSamples is the report without the raw samples of single orders.
func (r *Report) WithoutSamples() *Report {
	short := *r
	short.Rounds, short.Faults = nil, nil
	for _, round := range r.Rounds {
		round.Samples = Samples{}
		short.Rounds = append(short.Rounds, round)
	}
	for _, f := range r.Faults {
		results := f.Results
		f.Results = nil
		for _, res := range results {
			res.Samples = Samples{}
			f.Results = append(f.Results, res)
		}
		short.Faults = append(short.Faults, f)
	}
	return &short
}

// WriteFiles writes report.html, report.json and report.md into dir, which is made when it is missing, and returns
// their paths.
func (r *Report) WriteFiles(dir string) (paths []string, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}
	page, err := r.HTML()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range []struct {
		name string
		text []byte
	}{{"report.html", page}, {"report.json", text}, {"report.md", []byte(r.Markdown())}} {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, f.text, 0o600); err != nil {
			errs = append(errs, fmt.Errorf("write the report: %w", err))
			continue
		}
		paths = append(paths, path)
	}
	return paths, errors.Join(errs...)
}
