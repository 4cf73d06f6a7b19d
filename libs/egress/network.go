package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"lockstep.internal/libs/config"
)

// Config selects the addresses that connections may reach. The zero value allows public addresses only.
type Config struct {
	AllowPrivate  bool     `yaml:"allow_private" help:"allow connections to addresses that are not public, such as loopback, private and link-local"`
	AllowNetworks []string `yaml:"allow_networks" help:"further networks that connections may reach although they are not public, such as 10.20.0.0/16; default: none"`
}

// Validate returns the errors of the networks.
func (c Config) Validate() []error {
	var faults []error
	for _, n := range c.AllowNetworks {
		if _, err := netip.ParsePrefix(n); err != nil {
			faults = append(faults, config.Invalid("allow_networks", "%q is not a network such as 10.20.0.0/16", n))
		}
	}
	return faults
}

// ErrPrivate reports that an address is neither public nor allowed.
var ErrPrivate = errors.New("the address is not public: set allow_private or allow_networks to allow it")

// nonPublic lists the networks that are not public although netip treats them as public.
var nonPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT and internal networks of clouds
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("168.63.129.16/32"), // the host of virtual machines in a cloud
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("::ffff:0:0:0/96"), // IPv4-translated: any IPv4 address behind it
	netip.MustParsePrefix("64:ff9b::/96"),    // NAT64: any IPv4 address behind it
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), // 6to4: any IPv4 address behind it
	netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("5f00::/16"),
	netip.MustParsePrefix("fec0::/10"),
}

// Public reports whether an address belongs to the public internet.
func Public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range nonPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// control returns a function that checks each address right before the connection, after name resolution and redirects.
func (c Config) control() func(network, address string, _ syscall.RawConn) error {
	var allowed []netip.Prefix
	for _, n := range c.AllowNetworks {
		if p, err := netip.ParsePrefix(n); err == nil {
			allowed = append(allowed, p)
		}
	}
	return func(_, address string, _ syscall.RawConn) error {
		if c.AllowPrivate {
			return nil
		}
		parsed, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", address, err)
		}
		a := parsed.Addr().Unmap().WithZone("")
		if Public(a) {
			return nil
		}
		for _, p := range allowed {
			if p.Contains(a) {
				return nil
			}
		}
		return fmt.Errorf("connect to %s: %w", a, ErrPrivate)
	}
}

const (
	dialTimeout = 10 * time.Second
	keepAlive   = 30 * time.Second
)

// Dialer returns a dialer that checks each address. An address that is not allowed is [ErrPrivate].
func (c Config) Dialer() *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: c.control()}
}
