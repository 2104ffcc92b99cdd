package remoting

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// masterAddr finds the masters (broker id 0) in a route or a cluster's description. These are not always JSON: name
// servers write {0:"host:port"} to old clients.
var masterAddr = regexp.MustCompile(`[{,]"?0"?:"([^",]+:\d+)"`)

// Route returns the addresses of the masters that have a topic; none when the name server does not know it.
func Route(ctx context.Context, nameServer, topic string, creds Credentials) ([]string, error) {
	a, err := Ask(ctx, nameServer, CodeRoute, map[string]string{"topic": topic}, creds)
	if err != nil || a.Code == CodeTopicNotExist {
		return nil, err
	}
	return masters(a)
}

// Masters returns the addresses of every master that the name server knows.
func Masters(ctx context.Context, nameServer string, creds Credentials) ([]string, error) {
	a, err := Ask(ctx, nameServer, CodeClusterInfo, nil, creds)
	if err != nil {
		return nil, err
	}
	return masters(a)
}

func masters(a Answer) ([]string, error) {
	if a.Code != CodeOK {
		return nil, fmt.Errorf("name server answers code %d: %s", a.Code, a.Remark)
	}
	found := map[string]bool{}
	for _, m := range masterAddr.FindAllSubmatch(a.Body, -1) {
		found[string(m[1])] = true
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// EnsureTopic creates a topic on every master unless it has a route already.
func EnsureTopic(ctx context.Context, nameServer, topic string, queues int, creds Credentials) error {
	if has, err := Route(ctx, nameServer, topic, creds); err != nil || len(has) > 0 {
		return err
	}
	brokers, err := Masters(ctx, nameServer, creds)
	if err != nil {
		return err
	}
	if len(brokers) == 0 {
		return fmt.Errorf("create topic %s: name server %s knows no broker yet", topic, nameServer)
	}
	for _, addr := range brokers {
		a, err := Ask(ctx, addr, CodeUpdateTopic, map[string]string{
			"topic": topic, "defaultTopic": "TBW102", "readQueueNums": strconv.Itoa(queues), "writeQueueNums": strconv.Itoa(queues),
			"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
		}, creds)
		if err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
		if err := a.Refused(); err != nil {
			return fmt.Errorf("create topic %s at broker %s: %w", topic, addr, err)
		}
		if a.Code != CodeOK {
			return fmt.Errorf("create topic %s: broker %s answers code %d: %s", topic, addr, a.Code, a.Remark)
		}
	}
	return nil
}

// DeleteTopic removes a topic from every master and from the name server. A topic that is not there is no error.
func DeleteTopic(ctx context.Context, nameServer, topic string, creds Credentials) error {
	return errors.Join(
		onMasters(ctx, nameServer, CodeDeleteTopic, map[string]string{"topic": topic}, creds),
		accepted(nameServer, "delete topic "+topic)(Ask(ctx, nameServer, CodeDeleteTopicAtNameServer, map[string]string{"topic": topic}, creds)),
	)
}

// DeleteGroup removes a consumer group, its offsets, its retry topic and its dead-letter topic.
func DeleteGroup(ctx context.Context, nameServer, group string, creds Credentials) error {
	return errors.Join(
		onMasters(ctx, nameServer, CodeDeleteGroup, map[string]string{"groupName": group, "cleanOffset": "true"}, creds),
		DeleteTopic(ctx, nameServer, "%RETRY%"+group, creds),
		DeleteTopic(ctx, nameServer, "%DLQ%"+group, creds),
	)
}

// onMasters asks the same of every master.
func onMasters(ctx context.Context, nameServer string, code int, ext map[string]string, creds Credentials) error {
	brokers, err := Masters(ctx, nameServer, creds)
	errs := []error{err}
	for _, addr := range brokers {
		errs = append(errs, accepted(addr, fmt.Sprintf("request %d of %v", code, ext))(Ask(ctx, addr, code, ext, creds)))
	}
	return errors.Join(errs...)
}

// accepted turns an answer with an error code into an error.
func accepted(addr, what string) func(Answer, error) error {
	return func(a Answer, err error) error {
		if err == nil && a.Code != CodeOK && a.Code != CodeTopicNotExist {
			err = fmt.Errorf("%s answers code %d: %s", addr, a.Code, a.Remark)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
}
