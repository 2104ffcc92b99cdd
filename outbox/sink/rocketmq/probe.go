package rocketmq

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// Requests of RocketMQ's remoting protocol that a probe makes.
const (
	requestHeartbeat = 34
	requestRoute     = 105
)

// maxFrame bounds an answer to a probe.
const maxFrame = 1 << 20

// Probe asks every master broker of the topic that was last sent to for any answer: an empty heartbeat, which leaves
// nothing behind. nil means that all of them answered. It uses connections of its own, since the client's own
// state is in doubt when this is asked.
func (s *Sink) Probe(ctx context.Context) error {
	topic, ok := s.lastTopic.Load().(string)
	if !ok {
		return errors.New("rocketmq sink: nothing was sent yet")
	}
	brokers, err := s.masters(ctx, topic)
	if err != nil {
		return err
	}
	body := fmt.Sprintf(`{"clientID":%q,"producerDataSet":[],"consumerDataSet":[]}`, "probe-"+uuid.NewString())
	for _, addr := range brokers {
		if _, err := ask(ctx, addr, requestHeartbeat, nil, []byte(body)); err != nil {
			return fmt.Errorf("probe broker %s: %w", addr, err)
		}
	}
	return nil
}

// masters asks the name servers, one after another, for a topic's brokers.
func (s *Sink) masters(ctx context.Context, topic string) ([]string, error) {
	servers, err := rocketmq.NameServers(s.cfg.NameServers)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, server := range servers {
		addr := strings.TrimPrefix(server, "http://")
		route, err := ask(ctx, addr, requestRoute, map[string]string{"topic": topic}, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("probe name server %s: %w", addr, err))
			continue
		}
		if brokers := masterAddrs(route); len(brokers) > 0 {
			return brokers, nil
		}
		errs = append(errs, fmt.Errorf("probe name server %s: topic %s has no master", addr, topic))
	}
	return nil, errors.Join(errs...)
}

// masterAddrs finds the masters' addresses in a route. Java's name server writes the broker id as a bare number,
// which is no JSON.
func masterAddrs(route []byte) (addrs []string) {
	for _, m := range regexp.MustCompile(`[{,]\s*"?0"?\s*:\s*"([^"]+)"`).FindAllSubmatch(route, -1) {
		addrs = append(addrs, string(m[1]))
	}
	return addrs
}

// frameHeader is the JSON form of a remoting header.
type frameHeader struct {
	Code      int               `json:"code"`
	Flag      int               `json:"flag"`
	Language  string            `json:"language"`
	Opaque    int32             `json:"opaque"`
	Version   int               `json:"version"`
	Remark    string            `json:"remark,omitempty"`
	ExtFields map[string]string `json:"extFields,omitempty"`
}

// ask sends one request and returns the body of its answer; an answer with an error code is an error.
func ask(ctx context.Context, addr string, code int, ext map[string]string, body []byte) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	// Language and version are those of the Go client, which every broker knows.
	header, err := json.Marshal(frameHeader{Code: code, Language: "GO", Opaque: 1, Version: 317, ExtFields: ext})
	if err != nil {
		return nil, err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header))) // its top byte 0 says JSON
	if _, err := conn.Write(append(append(frame, header...), body...)); err != nil {
		return nil, err
	}
	return readAnswer(conn)
}

func readAnswer(r io.Reader) ([]byte, error) {
	var size [8]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	total := binary.BigEndian.Uint32(size[:4])
	head := binary.BigEndian.Uint32(size[4:]) & 0xffffff
	if total < 4 || total > maxFrame || head > total-4 {
		return nil, fmt.Errorf("answer of %d bytes with a header of %d", total, head)
	}
	frame := make([]byte, total-4)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	var h frameHeader
	if err := json.Unmarshal(frame[:head], &h); err != nil {
		return nil, err
	}
	if h.Code != 0 {
		return nil, fmt.Errorf("answer code %d: %s", h.Code, h.Remark)
	}
	return frame[head:], nil
}
