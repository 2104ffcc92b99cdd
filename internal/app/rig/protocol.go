package rig

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"fmt"

	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
)

// order is a line of JSON on the child's standard input.
type order struct {
	// Config comes first. It is handed over here because it holds passwords, which neither arguments nor files should.
	Config string `json:"config,omitempty"`
	// LoseCommits, unless nil, loses the answer to every n-th COMMIT; 0 loses none.
	LoseCommits *int `json:"lose_commits,omitempty"`
}

// answer is a line of JSON on its standard output: one for each order, with the counters as they are.
type answer struct {
	// URL is where the API is.
	URL      string           `json:"url,omitempty"`
	Counters compare.Counters `json:"counters"`
}

// encodeConfig keeps the secrets, which every textual form hides. Both ends are the same program.
func encodeConfig(cfg configs.Config) (string, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(cfg); err != nil {
		return "", fmt.Errorf("hand the configuration over: %w", err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

func decodeConfig(text string) (cfg configs.Config, err error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(b)).Decode(&cfg)
	}
	if err != nil {
		return cfg, fmt.Errorf("configuration from standard input: %w", err)
	}
	return cfg, nil
}
