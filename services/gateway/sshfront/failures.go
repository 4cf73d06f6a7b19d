package sshfront

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/time/rate"
)

var errTooManyFailures = errors.New("too many attempts have failed; try again later")

// maxAddresses is the number of addresses whose failures are counted. When there are more, counting starts again.
const maxAddresses = 10_000

// failures counts attempts that failed, by the address that they came from.
type failures struct {
	limits Limits

	mu        sync.Mutex
	addresses map[string]*rate.Limiter
}

func newFailures(l Limits) *failures {
	return &failures{limits: l, addresses: map[string]*rate.Limiter{}}
}

// allowed reports whether an address may try.
func (f *failures) allowed(from net.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	limiter, ok := f.addresses[host(from)]
	return !ok || limiter.Tokens() >= 1
}

// add counts a failure.
func (f *failures) add(from net.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	limiter, ok := f.addresses[host(from)]
	if !ok {
		if len(f.addresses) >= maxAddresses {
			clear(f.addresses)
		}
		limiter = rate.NewLimiter(f.limits.Rate, f.limits.Burst)
		f.addresses[host(from)] = limiter
	}
	limiter.Allow()
}

func host(address net.Addr) string {
	name, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	return name
}
