package kube_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/kube"
)

func TestParseIdentity(t *testing.T) {
	t.Parallel()
	user := func(more ...string) http.Header {
		h := http.Header{"Impersonate-User": {"lockstep:user:7"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	for name, c := range map[string]struct {
		header  http.Header
		want    kube.Identity
		wantErr string
	}{
		"a user": {header: user(), want: kube.Identity{User: "lockstep:user:7"}},
		"a user in groups": {
			header: user("Impersonate-Group", "lockstep:role:reader", "Impersonate-Group", "lockstep:role:developer"),
			want:   kube.Identity{User: "lockstep:user:7", Groups: []string{"lockstep:role:reader", "lockstep:role:developer"}},
		},
		"a service": {
			header: http.Header{"Impersonate-User": {"lockstep:service:gitlab"}},
			want:   kube.Identity{User: "lockstep:service:gitlab"},
		},
		"other headers": {
			header: user("Authorization", "Bearer x", "X-Remote-User", "root", "Sec-Websocket-Protocol", "v5.channel.k8s.io"),
			want:   kube.Identity{User: "lockstep:user:7"},
		},
		"lower-case header": {
			header: http.Header{"impersonate-user": {"lockstep:user:7"}}, want: kube.Identity{User: "lockstep:user:7"},
		},
		"no user": {header: http.Header{}, wantErr: "impersonates 0 users"},
		"groups without user": {
			header: http.Header{"Impersonate-Group": {"lockstep:role:reader"}}, wantErr: "impersonates 0 users",
		},
		"two users": {
			header: user("Impersonate-User", "lockstep:user:8"), wantErr: "impersonates 2 users",
		},
		"two users in two spellings": {
			header: user("impersonate-user", "lockstep:user:8"), wantErr: "impersonates 2 users",
		},
		"an empty name": {header: http.Header{"Impersonate-User": {""}}, wantErr: `user ""`},
		"a system user": {
			header: http.Header{"Impersonate-User": {"system:admin"}}, wantErr: `user "system:admin"`,
		},
		"a service account": {
			header:  http.Header{"Impersonate-User": {"system:serviceaccount:kube-system:default"}},
			wantErr: "the agent impersonates only users that begin with lockstep:",
		},
		"a user of the cluster": {
			header: http.Header{"Impersonate-User": {"kubernetes-admin"}}, wantErr: `"kubernetes-admin"`,
		},
		"a capitalized prefix": {
			header: http.Header{"Impersonate-User": {"Lockstep:user:7"}}, wantErr: `"Lockstep:user:7"`,
		},
		"a space before the prefix": {
			header: http.Header{"Impersonate-User": {" lockstep:user:7"}}, wantErr: `" lockstep:user:7"`,
		},
		"the prefix alone":      {header: http.Header{"Impersonate-User": {"lockstep:"}}, wantErr: `"lockstep:"`},
		"the prefix and spaces": {header: http.Header{"Impersonate-User": {"lockstep:  "}}, wantErr: `"lockstep:  "`},
		"control characters":    {header: http.Header{"Impersonate-User": {"lockstep:\x00"}}, wantErr: "user"},
		"a system group": {
			header:  user("Impersonate-Group", "lockstep:role:reader", "Impersonate-Group", "system:masters"),
			wantErr: `group "system:masters"`,
		},
		"a group in an upper-case header": {
			header: user("IMPERSONATE-GROUP", "system:masters"), wantErr: `group "system:masters"`,
		},
		"groups in one value": {
			header: user("Impersonate-Group", "system:masters,lockstep:role:reader"), wantErr: "group",
		},
		"an empty group": {header: user("Impersonate-Group", ""), wantErr: `group ""`},
		"too many groups": {
			header:  user(strings.Split(strings.TrimSuffix(strings.Repeat("Impersonate-Group,lockstep:a,", 101), ","), ",")...),
			wantErr: "101 groups",
		},
		"a UID": {header: user("Impersonate-Uid", "1"), wantErr: "Impersonate-Uid"},
		"an extra field": {
			header: user("Impersonate-Extra-Scopes", "view"), wantErr: "Impersonate-Extra-Scopes",
		},
		"an unknown impersonation header": {header: user("Impersonate-Whatever", "x"), wantErr: "Impersonate-Whatever"},
		"a token in a WebSocket subprotocol": {
			header:  user("Sec-Websocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0"),
			wantErr: "tokens are not allowed",
		},
		"a token in another spelling": {
			header:  user("sec-websocket-protocol", "Base64URL.Bearer.authorization.k8s.io.c2VjcmV0"),
			wantErr: "tokens are not allowed",
		},
		"a token in a second value": {
			header: user("Sec-Websocket-Protocol", "v5.channel.k8s.io", "Sec-Websocket-Protocol",
				"base64url.bearer.authorization.k8s.io.x"),
			wantErr: "tokens are not allowed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := kube.ParseIdentity(c.header)
			if c.wantErr != "" {
				require.ErrorContains(t, err, c.wantErr)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("Impersonate-User", "lockstep:user:7", "Impersonate-Group", "lockstep:role:reader")
	f.Add("impersonate-User", "lockstep:user:7", "Impersonate-Extra-A", "b")
	f.Add("Impersonate-User", "lockstep:user:7", "Impersonate-User", "system:admin")
	f.Fuzz(func(t *testing.T, key, value, otherKey, otherValue string) {
		header := http.Header{}
		header[key] = append(header[key], value)
		header[otherKey] = append(header[otherKey], otherValue)
		identity, err := kube.ParseIdentity(header)
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
					require.Contains(t, append(identity.Groups, identity.User), value, "every impersonation header is used or refused")
				}
			}
		}
	})
}
