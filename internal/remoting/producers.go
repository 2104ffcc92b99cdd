package remoting

import (
	"context"
	"encoding/json"
	"strings"
)

// KnowsProducer tells whether a broker has had the heartbeat of a producer of the group, whose client id ends in
// "@instance". Only then does it ask this producer about half messages. supported is false when the broker does not
// answer such questions, or not to these credentials.
func KnowsProducer(ctx context.Context, broker, group, instance string, creds Credentials) (known, supported bool, err error) {
	a, err := Ask(ctx, broker, CodeProducerConnections, map[string]string{"producerGroup": group}, creds)
	switch {
	case err != nil:
		return false, true, err
	case a.Code == CodeSystemError: // how RocketMQ says that it knows no producer of the group
		return false, true, nil
	case a.Code != CodeOK:
		return false, false, nil
	}
	var found struct {
		ConnectionSet []struct {
			ClientID string `json:"clientId"`
		} `json:"connectionSet"`
	}
	if err := json.Unmarshal(a.Body, &found); err != nil {
		return false, false, nil //nolint:nilerr // an answer that cannot be read is no answer to the question
	}
	for _, c := range found.ConnectionSet {
		if strings.HasSuffix(c.ClientID, "@"+instance) {
			return true, true, nil
		}
	}
	return false, true, nil
}
