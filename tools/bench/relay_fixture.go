package main

import (
	"context"
	"crypto/tls"

	"lockstep.internal/tools/stack"
)

// relayFixture is a target with the routes to it: through Lockstep's relay, direct, through remotedialer, and through
// processes that copy. All of it uses TLS, or nothing does, except behind an agent, as in a cluster.
type relayFixture struct {
	*fixture
	certified

	tls    *tls.Config
	target *child
	routes []route
	relays *lockstepRelays
}

func newRelayFixture(ctx context.Context, f *fixture, isSecure bool) *relayFixture {
	r := &relayFixture{fixture: f}
	keys, _, err := stack.InitRelay(f.file("keys"))
	check(err)
	files := certified{CertFile: keys.CertFile, KeyFile: keys.KeyFile, CAFile: keys.CertFile}
	if isSecure {
		r.certified = files
		r.tls = must(files.client())
	}
	r.target = f.startConfigured(ctx, childTarget, files)
	r.relays = r.newLockstepRelays(ctx)
	r.routes = []route{r.relays.route(r.relays.first), r.direct(), r.remotedialer(ctx), r.copies(ctx)}
	for _, to := range r.routes {
		to.awaitTarget(ctx)
	}
	return r
}

// direct returns the route without a relay.
func (r *relayFixture) direct() route {
	addresses := r.target.addresses
	if r.tls == nil {
		return route{name: "the direct connection", http: addresses[targetHTTP], stream: addresses[targetStream]}
	}
	return route{
		name: "the direct connection", http: addresses[targetHTTPS], stream: addresses[targetStreamTLS],
		kube: addresses[targetKube], caFile: r.CAFile, tls: r.tls,
	}
}

// twoRelays returns the route through a relay that does not have the agent.
func (r *relayFixture) twoRelays(ctx context.Context) route {
	second := r.relays.route(r.relays.start(ctx))
	second.awaitTarget(ctx)
	return second
}
