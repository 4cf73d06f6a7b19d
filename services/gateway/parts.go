package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/pires/go-proxyproto"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/reload"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/service"
)

// proxyHeaderTimeout is the time that a load balancer has to send the header of the PROXY protocol.
const proxyHeaderTimeout = 5 * time.Second

// discoveryRetry bounds the pauses between attempts to read the discovery document.
var discoveryRetry = retry.Policy{Min: time.Second, Max: time.Minute}

// parts returns the parts of the service with their dependencies.
func (p *process) parts() []service.Part {
	read := func(name string, run func(context.Context, func()) error, check func(context.Context) error,
		after ...string,
	) service.Part {
		return service.Part{
			Name: name, StartAfter: after, Check: check,
			Run: func(ctx context.Context, self *service.Handle) error { return run(ctx, self.Ready) },
		}
	}
	copies := []string{"directory", "workspaces", "revocations"}
	web := service.HTTPServer("web", p.cfg.Web.Listener, p.afterCopies(p.web),
		service.HTTPOptions{Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: append(copies, "activity")})
	conn := p.conn.Part()
	conn.Check = p.checkNATS
	return []service.Part{
		conn,
		p.directory.Part(),
		read("workspaces", p.workspaces.Run, p.workspaces.Check, "directory"),
		read("revocations", p.revocations.Run, p.revocations.Check, "nats"),
		{Name: "host keys", StartAfter: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			p.cleanup.Run(ctx)
			return nil
		}},
		{Name: "activity", StartAfter: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return p.publisher.Run(ctx, self.DrainContext())
		}},
		{Name: "processes", StartAfter: copies, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			p.programs.Run(ctx)
			return nil
		}},
		p.provider(),
		reload.Part(reload.Source[string]{
			Name: "sign_in.keys_file", Logger: p.tel.Logger, Read: p.cfg.SignIn.KeysFile.Read,
			Apply: func(string) error {
				keys, err := p.cfg.SignIn.keys()
				if err == nil {
					p.signIn.SetKeys(keys)
				}
				return err
			},
		}, ""),
		web,
		{
			Name: "ssh", StartAfter: append(copies, "activity"), Listen: p.listenSSH,
			Run: func(ctx context.Context, self *service.Handle) error {
				self.Ready()
				if err := p.ssh.Serve(ctx, self.Listener()); err != nil {
					return service.Permanent(err)
				}
				return nil
			},
		},
	}
}

// checkNATS is degraded without NATS, if the copies are in force. If it failed, all replicas would leave the service at
// the same time.
func (p *process) checkNATS(ctx context.Context) error {
	err := p.conn.Check(ctx)
	if p.isLoaded() {
		return service.Degraded(err)
	}
	return err
}

func (p *process) isLoaded() bool {
	return p.directory.Ready() && p.workspaces.Ready() && p.revocations.Ready()
}

// provider reads the discovery document. People who have signed in can work while the provider is down.
func (p *process) provider() service.Part {
	return service.Part{
		Name: "identity provider",
		Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			pause := discoveryRetry.Backoff()
			for ctx.Err() == nil {
				err := p.signIn.Discover(ctx)
				if err == nil {
					return nil
				}
				p.tel.Logger.WarnContext(ctx, "nobody new can sign in", logkey.Error(err))
				_ = pause.Wait(ctx) // it returns an error only when ctx ends
			}
			return nil
		},
	}
}

// afterCopies refuses requests until the copies are read: before, a workspace that exists would not be found.
func (p *process) afterCopies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.isLoaded() {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the gateway is starting: try again in a moment", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// listenSSH listens, for connections of load balancers with the PROXY protocol, if they are named.
func (p *process) listenSSH(ctx context.Context) (net.Listener, error) {
	trusted, err := networks(p.cfg.SSH.TrustedProxies)
	if err != nil {
		return nil, fmt.Errorf("ssh.trusted_proxies: %w", err)
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", p.cfg.SSH.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	if len(trusted) == 0 {
		return listener, nil
	}
	return &proxyproto.Listener{
		Listener: listener, ReadHeaderTimeout: proxyHeaderTimeout,
		ConnPolicy: func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			return policy(trusted, o.Upstream)
		},
	}, nil
}

var errNoAddress = errors.New("the peer has no IP address")

// policy requires the header of load balancers, and refuses it from everybody else.
func policy(trusted []netip.Prefix, peer net.Addr) (proxyproto.Policy, error) {
	parsed, err := netip.ParseAddrPort(peer.String())
	if err != nil {
		return proxyproto.REJECT, errNoAddress
	}
	ip := parsed.Addr().Unmap()
	if slices.ContainsFunc(trusted, func(n netip.Prefix) bool { return n.Contains(ip) }) {
		return proxyproto.REQUIRE, nil
	}
	return proxyproto.REJECT, nil
}
