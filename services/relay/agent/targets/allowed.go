package targets

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Address of a target: host name or IP address in lower case, and port.
type Address struct {
	Host string
	Port uint16
}

// String is host:port.
func (a Address) String() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))) }

// hostName has labels of letters, digits, dashes and underscores.
var hostName = regexp.MustCompile(`^[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?(\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)*$`)

// maxHost is the maximum length of a DNS name.
const maxHost = 253

// ParseAddress reads host:port. A trailing dot is removed.
func ParseAddress(text string) (Address, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return Address{}, fmt.Errorf("%.300q is not host:port", text)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return Address{}, fmt.Errorf("%.300q has no port from 1 to 65535", text)
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" {
		return Address{Host: ip.Unmap().String(), Port: uint16(number)}, nil
	}
	if len(host) > maxHost || !hostName.MatchString(host) {
		return Address{}, fmt.Errorf("%.300q has no host that is a name or an IP address", text)
	}
	return Address{Host: host, Port: uint16(number)}, nil
}

// Allowed is a list of address patterns; see [ParseAllowed]. The zero value allows nothing.
type Allowed []pattern

// pattern of addresses; port 0 is any.
type pattern struct {
	host string
	port uint16
}

var hostPattern = regexp.MustCompile(`^[-a-z0-9_.*:]+$`)

// ParseAllowed reads patterns host:port. In the host, * matches any characters of one label, but no dot; the
// host * is any host. The port is a number, or * for any. {namespace_prefix} stands for namespacePrefix.
func ParseAllowed(texts []string, namespacePrefix string) (Allowed, error) {
	allowed := make(Allowed, 0, len(texts))
	for _, text := range texts {
		host, port, err := net.SplitHostPort(strings.ReplaceAll(text, "{namespace_prefix}", namespacePrefix))
		if err != nil {
			return nil, fmt.Errorf("%q is not host:port, such as *.*.svc:* or 10.0.0.1:5432", text)
		}
		p := pattern{host: strings.ToLower(strings.TrimSuffix(host, "."))}
		if !hostPattern.MatchString(p.host) {
			return nil, fmt.Errorf("%q: a host's name has letters, digits, dots, dashes, and * for any of them", text)
		}
		if ip, err := netip.ParseAddr(p.host); err == nil {
			p.host = ip.Unmap().String()
		}
		if port != "*" {
			number, err := strconv.ParseUint(port, 10, 16)
			if err != nil || number == 0 {
				return nil, fmt.Errorf("%q: the port is a number from 1 to 65535, or * for any", text)
			}
			p.port = uint16(number)
		}
		allowed = append(allowed, p)
	}
	return allowed, nil
}

// Allows reports whether a pattern matches the address.
func (a Allowed) Allows(address Address) bool {
	for _, p := range a {
		if (p.port == 0 || p.port == address.Port) && match(p.host, address.Host) {
			return true
		}
	}
	return false
}

// match matches labels of host names, which are separated by dots. A host that is only * is any host.
func match(pattern, text string) bool {
	if pattern == "*" {
		return true
	}
	// path.Match does not match separators with *. hostPattern excludes its other special characters.
	matches, err := path.Match(strings.ReplaceAll(pattern, ".", "/"), strings.ReplaceAll(text, ".", "/"))
	return err == nil && matches
}
