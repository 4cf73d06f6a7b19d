package domain

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// RelayTarget is an address in an agent's network that may be reached through the relay by its name.
type RelayTarget struct {
	Name string `json:"name"`
	// Address is host:port.
	Address string `json:"address"`
}

const (
	// MaxRelayTargets of one agent.
	MaxRelayTargets = 100
	// reservedTarget is the Kubernetes API of every agent.
	reservedTarget = "kubernetes"
	maxHost        = 253
)

var (
	targetName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	hostName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	// onlyNumbers is what looks like an IP address; who resolves names may take it for one that it is not.
	onlyNumbers = regexp.MustCompile(`^[0-9.]+$`)
)

// sortedTargets is a copy in the order of the names; nil for none.
func sortedTargets(targets []RelayTarget) []RelayTarget {
	if len(targets) == 0 {
		return nil
	}
	sorted := slices.Clone(targets)
	slices.SortStableFunc(sorted, func(a, b RelayTarget) int { return strings.Compare(a.Name, b.Name) })
	return sorted
}

func validateRelayTargets(f *faults, targets []RelayTarget) {
	if len(targets) > MaxRelayTargets {
		f.addf("relay_targets", "%d are given, and an agent may have %d", len(targets), MaxRelayTargets)
		return
	}
	seen := map[string]bool{}
	for _, t := range targets {
		if !targetName.MatchString(t.Name) {
			f.addf("relay_targets", "the name %.80q is not 1 to 63 lower-case letters, digits and dashes that begin and end with a letter or digit", t.Name)
			continue
		}
		path := "relay_targets." + t.Name
		if t.Name == reservedTarget {
			f.addf(path, "is the name of the agent's Kubernetes API: choose another")
		}
		if seen[t.Name] {
			f.addf(path, "is given twice")
		}
		seen[t.Name] = true
		if reason := wrongAddress(t.Address); reason != "" {
			f.addf(path, "the address %.300q %s", t.Address, reason)
		}
	}
}

// wrongAddress says what is wrong with host:port; empty when nothing is.
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
			return "has a zone, which only one machine knows"
		case ip.String() != host: // whoever allows addresses compares them as texts
			return "is to be written as " + net.JoinHostPort(ip.String(), port)
		}
		return ""
	}
	if len(host) > maxHost || !hostName.MatchString(host) || onlyNumbers.MatchString(host) {
		return "has a host that is neither a DNS name in lower case nor an IP address"
	}
	return ""
}
