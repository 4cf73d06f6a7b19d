package address

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

const (
	// separator between port and workspace.
	separator = "--"
	// signInLabel is the name below the zone where people sign in. It is no workspace, since it has no port.
	signInLabel = "sign-in"
	// TerminalPort is the port whose host has the terminal: that of SSH, so no program of the workspace is at this host.
	TerminalPort = 22
	// MaxWorkspace is the greatest length of a name that fits into a label of DNS, which has 63 characters.
	MaxWorkspace = 63 - len("65535") - len(separator)
)

// Zone is a DNS name, without a dot at its end, whose names are those of workspaces. A port may follow, where the
// gateway is not at port 443.
type Zone string

// ParseZone checks the name of a zone, such as ws.example.com or localhost:8443.
func ParseZone(text string) (Zone, error) {
	host, port := text, ""
	if strings.Contains(text, ":") {
		var err error
		if host, port, err = net.SplitHostPort(text); err != nil {
			return "", fmt.Errorf("zone %q is not a DNS name: %w", text, err)
		}
		if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
			return "", fmt.Errorf("zone %q has no valid port", text)
		}
		port = ":" + port
	}
	ascii, err := idna.Lookup.ToASCII(host)
	if err != nil || ascii == "" || net.ParseIP(host) != nil || strings.HasSuffix(host, ".") {
		return "", fmt.Errorf("zone %q is not a DNS name", text)
	}
	return Zone(strings.ToLower(ascii) + port), nil
}

// Target is a port of a workspace.
type Target struct {
	Workspace string
	Port      int
}

// Host returns the host of a target, with the port of the zone.
func (z Zone) Host(t Target) string {
	return strconv.Itoa(t.Port) + separator + t.Workspace + "." + string(z)
}

// SignIn returns the host where people sign in.
func (z Zone) SignIn() string { return signInLabel + "." + string(z) }

// IsSignIn reports whether a host is that where people sign in.
func (z Zone) IsSignIn(host string) bool {
	return strings.EqualFold(z.trimPort(host), z.trimPort(z.SignIn()))
}

// Parse returns the target of a host, as in the header Host or in a certificate request. The port of the gateway does
// not count. It returns false for every other name.
func (z Zone) Parse(host string) (Target, bool) {
	name := strings.ToLower(z.trimPort(host))
	label, ok := strings.CutSuffix(name, "."+z.trimPort(string(z)))
	if !ok {
		return Target{}, false
	}
	digits, workspace, ok := strings.Cut(label, separator)
	if !ok || !isLabel(workspace) || len(workspace) > MaxWorkspace {
		return Target{}, false
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || strconv.FormatUint(port, 10) != digits { // one form of each, such as no 080
		return Target{}, false
	}
	return Target{Workspace: workspace, Port: int(port)}, true
}

func (z Zone) trimPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// isLabel reports whether a text is a name of a workspace: lower-case letters, digits and inner hyphens.
func isLabel(text string) bool {
	for i, c := range []byte(text) {
		inner := i > 0 && i < len(text)-1
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || !inner) {
			return false
		}
	}
	return text != ""
}
