package remoting

import "fmt"

// Refused returns an error when the answer says that the credentials are not good, or not good enough.
func (a Answer) Refused() error {
	if a.Code != CodeNoPermission {
		return nil
	}
	return fmt.Errorf("it refuses the request (code %d: %s): check rocketmq.access_key and secret_key, and that the user has Pub, Sub and Get on the topics and groups", a.Code, a.Remark)
}
