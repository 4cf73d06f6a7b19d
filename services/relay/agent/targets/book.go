package targets

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Table is what relays report, and what of it counts. It may be used by many goroutines.
type Table struct {
	allowed Allowed

	mu       sync.Mutex
	reported map[*Reporter]Configuration
	current  *Configuration
	known    chan struct{} // closed when there is a first one
	uses     map[*use]struct{}
}

// use of a target by a stream.
type use struct {
	name    string
	address Address
	over    func(why error)
}

// NewTable makes a book without a configuration.
func NewTable(allowed Allowed) *Table {
	return &Table{allowed: allowed, reported: map[*Reporter]Configuration{}, known: make(chan struct{}), uses: map[*use]struct{}{}}
}

// Known is closed once there is a configuration.
func (b *Table) Known() <-chan struct{} { return b.known }

// Reporter is one connection to a relay.
type Reporter struct{ book *Table }

// Reporter makes one; it counts from its first report on.
func (b *Table) Reporter() *Reporter { return &Reporter{book: b} }

// Report takes the place of the reporter's report before. It returns whether another configuration counts now, once those who use a target that is no more, or is elsewhere, have been told.
func (r *Reporter) Report(c Configuration) bool {
	b := r.book
	b.mu.Lock()
	b.reported[r] = c
	changed := b.choose()
	over := map[*use]error{}
	for u := range b.uses {
		if why := b.void(u); why != nil {
			over[u] = why
			delete(b.uses, u)
		}
	}
	b.mu.Unlock()
	for u, why := range over {
		u.over(why)
	}
	return changed
}

// void says why a use may not go on.
func (b *Table) void(u *use) error {
	address, err := b.find(u.name)
	switch {
	case err != nil:
		return err
	case address != u.address:
		return fmt.Errorf("target %q is at %s now (revision %d of the agent's configuration), and not at %s", u.name, address, b.current.Revision, u.address)
	}
	return nil
}

// Leave forgets what it reported, unless nobody else has reported anything. Who is left may know less for a moment: what is in use stays so until somebody reports otherwise.
func (r *Reporter) Leave() {
	b := r.book
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reported, r)
	b.choose()
}

func (b *Table) choose() bool {
	highest := b.current
	if len(b.reported) > 0 {
		highest = nil
	}
	for c := range maps.Values(b.reported) {
		if highest == nil || c.Revision > highest.Revision {
			highest = &c
		}
	}
	before := b.current
	if before == nil && highest != nil {
		close(b.known)
	}
	b.current = highest
	return highest != nil && (before == nil || before.Revision != highest.Revision || !maps.Equal(before.Addresses, highest.Addresses))
}

// Find returns where a target is. Its error is for who asked.
func (b *Table) Find(name string) (Address, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.find(name)
}

// Use is Find for who stays there. over is called, at most once and maybe before Use returns, when the target is no more, is elsewhere, or is not allowed, with the reason for who asked. The
// caller calls release when it uses it no longer.
func (b *Table) Use(name string, over func(why error)) (address Address, release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if address, err = b.find(name); err != nil {
		return Address{}, nil, err
	}
	u := &use{name: name, address: address, over: over}
	b.uses[u] = struct{}{}
	return address, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.uses, u)
	}, nil
}

func (b *Table) find(name string) (Address, error) {
	if b.current == nil {
		return Address{}, errors.New("the agent has not been told its targets yet")
	}
	address, known := b.current.Addresses[name]
	switch {
	case !known:
		return Address{}, fmt.Errorf("the agent's configuration (revision %d) has no target %q", b.current.Revision, name)
	case !b.allowed.Allows(address):
		return Address{}, fmt.Errorf("target %q is at %s, which targets.allowed_addresses of the agent in its cluster does not allow", name, address)
	}
	return address, nil
}

// Summary of what counts.
type Summary struct {
	// Known says whether there is a configuration at all.
	Known    bool
	Revision int64
	Targets  int
	// Forbidden are the names of targets whose addresses are not allowed, in order.
	Forbidden []string
}

// Summary says what counts now.
func (b *Table) Summary() Summary {
	b.mu.Lock()
	current := b.current
	b.mu.Unlock()
	if current == nil {
		return Summary{}
	}
	s := Summary{Known: true, Revision: current.Revision, Targets: len(current.Addresses)}
	for _, name := range slices.Sorted(maps.Keys(current.Addresses)) {
		if !b.allowed.Allows(current.Addresses[name]) {
			s.Forbidden = append(s.Forbidden, name)
		}
	}
	return s
}
