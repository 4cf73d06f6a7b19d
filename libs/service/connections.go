package service

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"lockstep.internal/libs/logkey"
)

// Reasons of refusals, in the metric lockstep_http_refused_total.
const (
	refusedConnections     = "connections"
	refusedHostConnections = "host_connections"
	refusedHostConnects    = "host_connects"
	refusedBodies          = "bodies"
	refusedBodyTimeout     = "body_timeout"
	refusedRequests        = "requests"
	refusedResponses       = "responses"
)

const (
	// connectBurst is how many seconds' worth of new connections one host may open at once.
	connectBurst = 10
	// maxHosts bounds the memory for hosts without connections.
	maxHosts = 10_000
	// ipv6Host is the length of the prefix that identifies a remote host with IPv6: a host gets a whole network.
	ipv6Host = 64
	// refusalLogInterval is the shortest time between two log entries about refused connections.
	refusalLogInterval = time.Minute
)

// limitedListener closes connections above the limits of cfg, before TLS. The server reports the end of the others to
// onState. Hijacked connections no longer count.
type limitedListener struct {
	net.Listener

	cfg     Listener
	logger  *slog.Logger
	refused func(reason string)
	now     func() time.Time

	mu      sync.Mutex
	open    int
	hosts   map[netip.Prefix]*remoteHost
	nextLog time.Time
}

// remoteHost counts the connections of one remote host.
type remoteHost struct {
	open int
	// connects is how many connections the host may open now; it was computed at refilledAt.
	connects   float64
	refilledAt time.Time
}

func limitConnections(l net.Listener, cfg Listener, logger *slog.Logger, refused func(reason string)) *limitedListener {
	return &limitedListener{
		Listener: l, cfg: cfg, logger: logger, refused: refused, now: time.Now, hosts: map[netip.Prefix]*remoteHost{},
	}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // the listener's own
		}
		reason, logged := l.add(conn.RemoteAddr())
		if reason == "" {
			return conn, nil
		}
		l.refused(reason)
		if logged {
			l.logger.Warn("refused a connection; further refusals are only counted",
				slog.String(logkey.RemoteAddress, conn.RemoteAddr().String()), slog.String(logkey.Reason, reason))
		}
		_ = conn.Close() // it was not used
	}
}

// add counts a connection. It returns the reason if a limit refuses it, and whether to log that.
func (l *limitedListener) add(address net.Addr) (reason string, logged bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if reason = l.check(address, now); reason == "" {
		l.open++
		return "", false
	}
	if logged = !now.Before(l.nextLog); logged {
		l.nextLog = now.Add(refusalLogInterval)
	}
	return reason, logged
}

func (l *limitedListener) check(address net.Addr, now time.Time) (reason string) {
	key, remote := hostOf(address.String())
	if !remote {
		if l.open >= l.cfg.MaxHTTPConnections {
			return refusedConnections
		}
		return ""
	}
	burst := float64(connectBurst * l.cfg.MaxConnectsPerHost)
	host := l.hosts[key]
	if host == nil {
		if len(l.hosts) >= maxHosts {
			for other, h := range l.hosts {
				if h.open == 0 {
					delete(l.hosts, other)
				}
			}
		}
		host = &remoteHost{connects: burst, refilledAt: now}
		l.hosts[key] = host
	}
	host.connects += now.Sub(host.refilledAt).Seconds() * float64(l.cfg.MaxConnectsPerHost)
	host.connects, host.refilledAt = min(host.connects, burst), now
	switch {
	case host.connects < 1:
		return refusedHostConnects
	case host.open >= l.cfg.MaxHTTPConnectionsPerHost:
		reason = refusedHostConnections
	case l.open >= l.cfg.MaxHTTPConnections:
		reason = refusedConnections
	default:
		host.open++
	}
	host.connects--
	return reason
}

// onState is the ConnState of the server.
func (l *limitedListener) onState(conn net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	key, remote := hostOf(conn.RemoteAddr().String())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if remote {
		l.hosts[key].open--
	}
}

// hostOf returns the remote host of an address, host:port; false for this machine.
func hostOf(address string) (netip.Prefix, bool) {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}, false
	}
	ip := parsed.Addr().Unmap().WithZone("")
	if ip.IsLoopback() {
		return netip.Prefix{}, false
	}
	bits := ip.BitLen()
	if ip.Is6() {
		bits = ipv6Host
	}
	host, err := ip.Prefix(bits)
	return host, err == nil
}
