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

// The files of a report.
const (
	pageFile     = "report.html"
	samplesFile  = "report.json"
	markdownFile = "report.md"
)

// CheckDir reports whether WriteFiles can write into dir, which is made when it is missing.
func CheckDir(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for _, name := range []string{pageFile, samplesFile, markdownFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s is in the way", filepath.Join(dir, name))
		}
	}
	f, err := os.CreateTemp(dir, ".report-")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// WriteFiles writes report.html, report.json and report.md into dir, which is made when it is missing, and returns
// their paths. Each takes the place of an earlier one only when it is whole, and one that cannot be written does not
// keep the others from it.
func (r *Report) WriteFiles(dir string) (paths []string, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}
	var errs []error
	for _, f := range []struct {
		name string
		text func() ([]byte, error)
	}{
		{pageFile, r.HTML},
		{samplesFile, func() ([]byte, error) { return json.Marshal(r) }},
		{markdownFile, func() ([]byte, error) { return []byte(r.Markdown()), nil }},
	} {
		path := filepath.Join(dir, f.name)
		text, err := f.text()
		if err == nil {
			err = replaceFile(path, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("write the report: %w", err))
			continue
		}
		paths = append(paths, path)
	}
	return paths, errors.Join(errs...)
}

// replaceFile writes a file beside path and gives it its name. A full disk leaves what was there.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".report-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}
