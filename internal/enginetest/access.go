package enginetest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/remoting"
)

// The request codes of a broker's access control.
const (
	codeCreateUser = 3001
	codeCreateACL  = 3006
)

// AddUser makes a user who is no administrator, with these actions ("Pub", "Sub", "Get") on every topic and group. admin
// is the user of OwnRocketMQWithUser.
func (r *OwnedRocketMQ) AddUser(t testing.TB, admin, user remoting.Credentials, actions ...string) {
	t.Helper()
	r.administer(t, admin, codeCreateUser, map[string]string{"username": user.AccessKey},
		map[string]any{"username": user.AccessKey, "password": user.SecretKey, "userType": "Normal"})
	subject := "User:" + user.AccessKey
	var entries []any
	for _, resource := range []string{"Topic:*", "Group:*"} {
		entries = append(entries, map[string]any{"resource": resource, "actions": actions, "decision": "Allow"})
	}
	r.administer(t, admin, codeCreateACL, map[string]string{"subject": subject},
		map[string]any{"subject": subject, "policies": []any{map[string]any{"policyType": "Custom", "entries": entries}}})
}

func (r *OwnedRocketMQ) administer(t testing.TB, admin remoting.Credentials, code int, ext map[string]string, body any) {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	a, err := remoting.AskWithBody(t.Context(), r.BrokerAddr(), code, ext, text, admin)
	require.NoError(t, err)
	require.Equal(t, remoting.CodeOK, a.Code, a.Remark)
}
