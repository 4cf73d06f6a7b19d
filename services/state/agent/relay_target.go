package agent

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockstep.internal/services/state/invalid"
)

// RelayTarget is an address in the agent's network that the relay forwards to.
type RelayTarget struct {
	Name string `json:"name"`
	// Address is host:port.
	Address string `json:"address"`
}

const (
	// MaxRelayTargets of one agent.
	MaxRelayTargets = 100
	// reservedTarget names the Kubernetes API of every agent.
	reservedTarget = "kubernetes"
	maxHost        = 253
)

var (
	targetName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	hostName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	// onlyNumbers matches names that resolvers may take for IP addresses.
	onlyNumbers = regexp.MustCompile(`^[0-9.]+$`)
)

// sortedTargets returns a copy sorted by name; nil for none.
func sortedTargets(targets []RelayTarget) []RelayTarget {
	if len(targets) == 0 {
		return nil
	}
	sorted := slices.Clone(targets)
	slices.SortStableFunc(sorted, func(a, b RelayTarget) int { return strings.Compare(a.Name, b.Name) })
	return sorted
}

func validateRelayTargets(f *invalid.Fields, targets []RelayTarget) {
	if len(targets) > MaxRelayTargets {
		f.Addf("relay_targets", "has %d targets, the limit is %d", len(targets), MaxRelayTargets)
		return
	}
	seen := map[string]bool{}
	for _, t := range targets {
		if !targetName.MatchString(t.Name) {
			f.Addf("relay_targets", "the name %.80q is not 1 to 63 lower-case letters, digits and inner dashes", t.Name)
			continue
		}
		path := "relay_targets." + t.Name
		if t.Name == reservedTarget {
			f.Addf(path, "is reserved for the agent's Kubernetes API: choose another name")
		}
		if seen[t.Name] {
			f.Addf(path, "is repeated")
		}
		seen[t.Name] = true
		if reason := wrongAddress(t.Address); reason != "" {
			f.Addf(path, "the address %.300q %s", t.Address, reason)
		}
	}
}

// wrongAddress explains why an address is invalid; empty if it is valid.
func wrongAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "is not host:port, such as shop.apps.svc:80 or [fd00::7]:5432"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return "has no port from 1 to 65535"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		switch {
		case ip.Zone() != "":
			return "has a zone, which is local to one machine"
		case ip.String() != host: // allow-lists compare addresses as strings
			return "must be written as " + net.JoinHostPort(ip.String(), port)
		}
		return ""
	}
	if len(host) > maxHost || !hostName.MatchString(host) || onlyNumbers.MatchString(host) {
		return "has a host that is neither a lower-case DNS name nor an IP address"
	}
	return ""
}
