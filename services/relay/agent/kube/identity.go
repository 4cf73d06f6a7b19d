package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Prefix of every user and group that the agent impersonates. Role bindings to these names grant
// rights to callers.
const Prefix = "lockstep:"

const (
	headerUser        = "Impersonate-User"
	headerGroup       = "Impersonate-Group"
	headerImpersonate = "Impersonate-"
	// headerRemote is for authenticating proxies of the API server; headerProtocols may carry a browser's token.
	headerRemote    = "X-Remote-"
	headerProtocols = "Sec-Websocket-Protocol"
	tokenProtocol   = "base64url.bearer.authorization.k8s.io."
	// maxGroups of one request.
	maxGroups = 100
)

// Identity that a request impersonates.
type Identity struct {
	User   string
	Groups []string
}

// ParseIdentity returns the user and groups that a request impersonates, or an error that is sent to the caller.
func ParseIdentity(header http.Header) (Identity, error) {
	var users, groups []string
	for key, values := range header {
		switch key := http.CanonicalHeaderKey(key); {
		case key == headerUser:
			users = append(users, values...)
		case key == headerGroup:
			groups = append(groups, values...)
		case strings.HasPrefix(key, headerImpersonate):
			return Identity{}, fmt.Errorf("header %s is not allowed: only Impersonate-User and Impersonate-Group are supported",
				key)
		case key == headerProtocols && strings.Contains(strings.ToLower(strings.Join(values, ",")), tokenProtocol):
			return Identity{}, errors.New("header Sec-WebSocket-Protocol: tokens are not allowed")
		}
	}
	switch {
	case len(users) != 1:
		return Identity{}, fmt.Errorf("the request impersonates %d users instead of one", len(users))
	case !hasPrefix(users[0]):
		return Identity{}, fmt.Errorf("user %.70q is not allowed: the agent impersonates only users that begin with %s",
			users[0], Prefix)
	case len(groups) > maxGroups:
		return Identity{}, fmt.Errorf("the request impersonates %d groups, more than %d", len(groups), maxGroups)
	}
	for _, group := range groups {
		if !hasPrefix(group) {
			return Identity{}, fmt.Errorf("group %.70q is not allowed: the agent impersonates only groups that begin with %s",
				group, Prefix)
		}
	}
	return Identity{User: users[0], Groups: groups}, nil
}

// hasPrefix reports whether a name is valid and has the prefix, with text after it.
func hasPrefix(name string) bool {
	rest, found := strings.CutPrefix(name, Prefix)
	return found && strings.TrimSpace(rest) != "" && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, unicode.IsControl)
}

// set removes all other identities from a header, and sets this one.
func (i Identity) set(header http.Header) {
	for key := range header {
		switch canonical := http.CanonicalHeaderKey(key); {
		case canonical == "Authorization", canonical == "Proxy-Authorization",
			strings.HasPrefix(canonical, headerImpersonate), strings.HasPrefix(canonical, headerRemote):
			delete(header, key)
		}
	}
	header[headerUser] = []string{i.User}
	if len(i.Groups) > 0 {
		header[headerGroup] = i.Groups
	}
}
