package netfault

import "regexp"

// Route bodies are handled as text, because they are not always JSON: to clients as old as rocketmq-client-go says it
// is, a real name server writes {0:"127.0.0.1:10911"}, with a number as key.
var (
	addrTable = regexp.MustCompile(`"brokerAddrs":\{[^}]*\}`)
	addrValue = regexp.MustCompile(`"[^",]+:\d+"`)
)

// BrokerAddrs returns the addresses in a route answer.
func BrokerAddrs(body []byte) (addrs []string) {
	rewriteRoute(body, func(addr string) string {
		addrs = append(addrs, addr)
		return addr
	})
	return addrs
}

// rewriteRoute returns the route answer with every broker's address replaced.
func rewriteRoute(body []byte, replace func(addr string) string) []byte {
	return addrTable.ReplaceAllFunc(body, func(table []byte) []byte {
		return addrValue.ReplaceAllFunc(table, func(value []byte) []byte {
			return []byte(`"` + replace(string(value[1:len(value)-1])) + `"`)
		})
	})
}
