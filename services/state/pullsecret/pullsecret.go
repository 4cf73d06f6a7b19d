// Package pullsecret has the credentials with which the workspaces of a project pull private images. It is pure.
package pullsecret

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/invalid"
)

// Limits of the credentials of a project. All of them are in one Secret.
const (
	maxRegistries = 20
	maxHost       = 253
	maxUsername   = 255
	maxPassword   = 16 << 10
)

const (
	dockerHub = "docker.io"
	// dockerHubKey is the name of Docker Hub in configurations of Docker.
	dockerHubKey = "https://index.docker.io/v1/"
)

// Registry is a registry with a user name. Its password is stored sealed.
type Registry struct {
	// Host is the host of the registry in image references, with its port if it has one.
	Host      string    `json:"host"`
	Username  string    `json:"username"`
	UpdatedAt time.Time `json:"updated_at"`
}

var hostPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// CheckHost returns the fault invalid_argument unless a text is the host of a registry as in image references.
func CheckHost(text string) error {
	host := text
	if before, port, found := strings.Cut(text, ":"); found {
		host = before
		if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || net.JoinHostPort(host, port) != text {
			host = ""
		}
	}
	if len(text) > maxHost || !hostPattern.MatchString(host) {
		return fault.New(errcode.InvalidArgument,
			"registry %.80q is not the host of a registry: write it as in images, such as registry.example or "+
				"registry.example:5000, without https:// and a path", text).With("field", "registry")
	}
	return nil
}

// New returns a registry and its sealed value. The fault invalid_argument names every invalid field, and no password.
func New(host, username, password string, now time.Time) (Registry, seal.Value, error) {
	if err := CheckHost(host); err != nil {
		return Registry{}, seal.Value{}, err
	}
	var f invalid.Fields
	if username == "" || len(username) > maxUsername || !utf8.ValidString(username) || strings.Contains(username, ":") ||
		strings.ContainsFunc(username, unicode.IsControl) {
		f.Addf("username", "must have 1 to %d printable characters, without a colon", maxUsername)
	}
	if password == "" || len(password) > maxPassword || !utf8.ValidString(password) || strings.Contains(password, "\x00") {
		f.Addf("password", "must have 1 to %d bytes of UTF-8 without NUL", maxPassword)
	}
	if err := f.Err("the pull secret of " + host); err != nil {
		return Registry{}, seal.Value{}, err
	}
	return Registry{Host: host, Username: username, UpdatedAt: now}, seal.NewValue(username + ":" + password), nil
}

// Set returns the registries with a new or changed one, by host. It returns the fault resource_exhausted if a project
// has too many.
func Set(all []Registry, changed Registry) ([]Registry, error) {
	out := make([]Registry, 0, len(all)+1)
	placed := false
	for _, r := range all {
		switch {
		case r.Host == changed.Host:
			continue
		case r.Host > changed.Host && !placed:
			out, placed = append(out, changed), true
		}
		out = append(out, r)
	}
	if !placed {
		out = append(out, changed)
	}
	if len(out) > maxRegistries {
		return nil, fault.New(errcode.ResourceExhausted,
			"the project has pull secrets of %d registries, the maximum: remove one that is not needed", maxRegistries)
	}
	return out, nil
}

// Config returns the content of a Kubernetes Secret for image pulls. The values are those that [New] returns, by host.
func Config(values seal.Values) (seal.Values, error) {
	type credentials struct {
		Auth string `json:"auth"`
	}
	auths := make(map[string]credentials, len(values))
	for host, value := range values {
		if host == dockerHub {
			host = dockerHubKey
		}
		auths[host] = credentials{Auth: base64.StdEncoding.EncodeToString([]byte(value.Reveal()))}
	}
	data, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		return nil, fmt.Errorf("encode %d pull secrets: %w", len(values), err)
	}
	return seal.Values{corev1.DockerConfigJsonKey: seal.NewValue(string(data))}, nil
}
