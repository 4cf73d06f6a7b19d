package kube_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/kube"
)

func TestRequestsAreMadeInTheNameOfWhomTheRelayNames(t *testing.T) {
	t.Parallel()
	user := func(more ...string) http.Header {
		h := http.Header{"Impersonate-User": {"lockstep:user:7"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		header http.Header
		want   kube.Identity
		says   string
	}{
		"a user":                    {header: user(), want: kube.Identity{User: "lockstep:user:7"}},
		"a user in groups":          {header: user("Impersonate-Group", "lockstep:role:reader", "Impersonate-Group", "lockstep:role:developer"), want: kube.Identity{User: "lockstep:user:7", Groups: []string{"lockstep:role:reader", "lockstep:role:developer"}}},
		"a service":                 {header: http.Header{"Impersonate-User": {"lockstep:service:gitlab"}}, want: kube.Identity{User: "lockstep:service:gitlab"}},
		"other headers":             {header: user("Authorization", "Bearer x", "X-Remote-User", "root", "Sec-Websocket-Protocol", "v5.channel.k8s.io"), want: kube.Identity{User: "lockstep:user:7"}},
		"in another spelling":       {header: http.Header{"impersonate-user": {"lockstep:user:7"}}, want: kube.Identity{User: "lockstep:user:7"}},
		"nobody":                    {header: http.Header{}, says: "impersonates 0 users"},
		"nobody, but groups":        {header: http.Header{"Impersonate-Group": {"lockstep:role:reader"}}, says: "impersonates 0 users"},
		"two":                       {header: user("Impersonate-User", "lockstep:user:8"), says: "impersonates 2 users"},
		"two in two spellings":      {header: user("impersonate-user", "lockstep:user:8"), says: "impersonates 2 users"},
		"an empty name":             {header: http.Header{"Impersonate-User": {""}}, says: `user ""`},
		"a system's user":           {header: http.Header{"Impersonate-User": {"system:admin"}}, says: `user "system:admin"`},
		"a service account":         {header: http.Header{"Impersonate-User": {"system:serviceaccount:kube-system:default"}}, says: "the agent impersonates only users that begin with lockstep:"},
		"a person of the cluster":   {header: http.Header{"Impersonate-User": {"kubernetes-admin"}}, says: `"kubernetes-admin"`},
		"a prefix in capitals":      {header: http.Header{"Impersonate-User": {"Lockstep:user:7"}}, says: `"Lockstep:user:7"`},
		"a space before it":         {header: http.Header{"Impersonate-User": {" lockstep:user:7"}}, says: `" lockstep:user:7"`},
		"the prefix alone":          {header: http.Header{"Impersonate-User": {"lockstep:"}}, says: `"lockstep:"`},
		"the prefix and spaces":     {header: http.Header{"Impersonate-User": {"lockstep:  "}}, says: `"lockstep:  "`},
		"characters of control":     {header: http.Header{"Impersonate-User": {"lockstep:\x00"}}, says: "user"},
		"a group of the system":     {header: user("Impersonate-Group", "lockstep:role:reader", "Impersonate-Group", "system:masters"), says: `group "system:masters"`},
		"a group, spelt otherwise":  {header: user("IMPERSONATE-GROUP", "system:masters"), says: `group "system:masters"`},
		"groups in one value":       {header: user("Impersonate-Group", "system:masters,lockstep:role:reader"), says: "group"},
		"an empty group":            {header: user("Impersonate-Group", ""), says: `group ""`},
		"very many groups":          {header: user(strings.Split(strings.TrimSuffix(strings.Repeat("Impersonate-Group,lockstep:a,", 101), ","), ",")...), says: "101 groups"},
		"a UID":                     {header: user("Impersonate-Uid", "1"), says: "Impersonate-Uid"},
		"an extra field":            {header: user("Impersonate-Extra-Scopes", "view"), says: "Impersonate-Extra-Scopes"},
		"something new to come":     {header: user("Impersonate-Whatever", "x"), says: "Impersonate-Whatever"},
		"a token of a browser":      {header: user("Sec-Websocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0"), says: "tokens are not allowed"},
		"a token, spelt otherwise":  {header: user("sec-websocket-protocol", "Base64URL.Bearer.authorization.k8s.io.c2VjcmV0"), says: "tokens are not allowed"},
		"a token in a second value": {header: user("Sec-Websocket-Protocol", "v5.channel.k8s.io", "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io.x"), says: "tokens are not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := kube.Admit(c.header)
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzAdmit(f *testing.F) {
	f.Add("Impersonate-User", "lockstep:user:7", "Impersonate-Group", "lockstep:role:reader")
	f.Add("impersonate-User", "lockstep:user:7", "Impersonate-Extra-A", "b")
	f.Add("Impersonate-User", "lockstep:user:7", "Impersonate-User", "system:admin")
	f.Fuzz(func(t *testing.T, key, value, otherKey, otherValue string) {
		header := http.Header{}
		header[key] = append(header[key], value)
		header[otherKey] = append(header[otherKey], otherValue)
		identity, err := kube.Admit(header)
		if err != nil {
			return
		}
		require.True(t, strings.HasPrefix(identity.User, "lockstep:"), identity.User)
		for _, group := range identity.Groups {
			require.True(t, strings.HasPrefix(group, "lockstep:"), group)
		}
		for key, values := range header {
			if strings.HasPrefix(strings.ToLower(key), "impersonate-") {
				for _, value := range values {
					require.Contains(t, append(identity.Groups, identity.User), value, "nothing of it is passed over in silence")
				}
			}
		}
	})
}
