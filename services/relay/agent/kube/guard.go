package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Prefix of every user and group that the agent acts as: nobody in the cluster has such a name unless somebody there gave rights to it.
const Prefix = "lockstep:"

const (
	headerUser        = "Impersonate-User"
	headerGroup       = "Impersonate-Group"
	headerImpersonate = "Impersonate-"
	// headerRemote is what a proxy in front of the API server says who a caller is with; headerProtocols may carry a token of a browser.
	headerRemote    = "X-Remote-"
	headerProtocols = "Sec-Websocket-Protocol"
	tokenProtocol   = "base64url.bearer.authorization.k8s.io."
	// maxGroups that one may be in.
	maxGroups = 100
)

// Identity is as whom a request is made.
type Identity struct {
	User   string
	Groups []string
}

// Admit reads from a request's header as whom it is to be made. An error, for the caller, is that it must not be.
func Admit(header http.Header) (Identity, error) {
	var users, groups []string
	for key, values := range header {
		switch key := http.CanonicalHeaderKey(key); {
		case key == headerUser:
			users = append(users, values...)
		case key == headerGroup:
			groups = append(groups, values...)
		case strings.HasPrefix(key, headerImpersonate):
			return Identity{}, fmt.Errorf("the request has the header %s: relays name a user and groups, nothing else", key)
		case key == headerProtocols && strings.Contains(strings.ToLower(strings.Join(values, ",")), tokenProtocol):
			return Identity{}, errors.New("the request has a token among the protocols of its WebSocket: the agent takes none")
		}
	}
	switch {
	case len(users) != 1:
		return Identity{}, fmt.Errorf("the request names %d users to act as, where the relay has to name one", len(users))
	case !ours(users[0]):
		return Identity{}, fmt.Errorf("the request is to act as user %.70q: the agent acts only as users that begin with %s", users[0], Prefix)
	case len(groups) > maxGroups:
		return Identity{}, fmt.Errorf("the request is to act as a member of %d groups, more than %d", len(groups), maxGroups)
	}
	for _, group := range groups {
		if !ours(group) {
			return Identity{}, fmt.Errorf("the request is to act as a member of group %.70q: the agent acts only as members of groups that begin with %s", group, Prefix)
		}
	}
	return Identity{User: users[0], Groups: groups}, nil
}

// ours says whether a name has the prefix, and something after it.
func ours(name string) bool {
	rest, found := strings.CutPrefix(name, Prefix)
	return found && strings.TrimSpace(rest) != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

// assume has a header say only this identity.
func (i Identity) assume(header http.Header) {
	for key := range header {
		switch canonical := http.CanonicalHeaderKey(key); {
		case canonical == "Authorization", canonical == "Proxy-Authorization", strings.HasPrefix(canonical, headerImpersonate), strings.HasPrefix(canonical, headerRemote):
			delete(header, key)
		}
	}
	header[headerUser] = []string{i.User}
	if len(i.Groups) > 0 {
		header[headerGroup] = i.Groups
	}
}
