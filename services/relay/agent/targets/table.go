package targets

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Table holds the configurations that relays sent, and selects the current one. It may be used by many goroutines.
type Table struct {
	allowed Allowed

	mu         sync.Mutex
	sources    map[*Source]Configuration
	current    *Configuration
	configured chan struct{} // closed when the first configuration was received
	uses       map[*use]struct{}
}

// use of a target by a stream.
type use struct {
	name     string
	address  Address
	onChange func(reason error)
}

// NewTable makes an empty table.
func NewTable(allowed Allowed) *Table {
	return &Table{
		allowed: allowed, sources: map[*Source]Configuration{}, configured: make(chan struct{}), uses: map[*use]struct{}{},
	}
}

// Configured returns a channel that is closed when the first configuration was received.
func (t *Table) Configured() <-chan struct{} { return t.configured }

// Source is one connection to a relay, which sends configurations.
type Source struct{ table *Table }

// AddSource adds a source. It has no effect before its first Update.
func (t *Table) AddSource() *Source { return &Source{table: t} }

// Update replaces the source's configuration. It calls back users of removed or changed targets, and then
// returns whether the current configuration changed.
func (s *Source) Update(c Configuration) bool {
	t := s.table
	t.mu.Lock()
	t.sources[s] = c
	changed := t.selectCurrent()
	invalid := map[*use]error{}
	for u := range t.uses {
		if reason := t.checkUse(u); reason != nil {
			invalid[u] = reason
			delete(t.uses, u)
		}
	}
	t.mu.Unlock()
	for u, reason := range invalid {
		u.onChange(reason)
	}
	return changed
}

// checkUse returns an error if the use is no longer valid.
func (t *Table) checkUse(u *use) error {
	address, err := t.find(u.name)
	switch {
	case err != nil:
		return err
	case address != u.address:
		return fmt.Errorf("the address of target %q changed to %s (was %s) in configuration revision %d",
			u.name, address, u.address, t.current.Revision)
	}
	return nil
}

// Remove removes the source. The last configuration is kept if there is no other source. Uses are checked again
// only at the next Update.
func (s *Source) Remove() {
	t := s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sources, s)
	t.selectCurrent()
}

func (t *Table) selectCurrent() bool {
	highest := t.current
	if len(t.sources) > 0 {
		highest = nil
	}
	for c := range maps.Values(t.sources) {
		if highest == nil || c.Revision > highest.Revision {
			highest = &c
		}
	}
	before := t.current
	if before == nil && highest != nil {
		close(t.configured)
	}
	t.current = highest
	if before == nil || highest == nil {
		return highest != nil
	}
	return before.Revision != highest.Revision || !maps.Equal(before.Addresses, highest.Addresses)
}

// Use returns the address of a target. Its error is sent to the caller. It calls onChange once, when the target is
// removed, gets another address or is no longer allowed. onChange may run before Use returns. Call release when done.
func (t *Table) Use(name string, onChange func(reason error)) (address Address, release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if address, err = t.find(name); err != nil {
		return Address{}, nil, err
	}
	u := &use{name: name, address: address, onChange: onChange}
	t.uses[u] = struct{}{}
	return address, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.uses, u)
	}, nil
}

func (t *Table) find(name string) (Address, error) {
	if t.current == nil {
		return Address{}, errors.New("the agent has not received its configuration yet")
	}
	address, known := t.current.Addresses[name]
	switch {
	case !known:
		return Address{}, fmt.Errorf("the agent's configuration (revision %d) has no target %q", t.current.Revision, name)
	case !t.allowed.Allows(address):
		return Address{}, fmt.Errorf("address %s of target %q is not in the agent's targets.allowed_addresses", address, name)
	}
	return address, nil
}

// Summary of the current configuration; empty without one.
type Summary struct {
	Revision int64
	Targets  int
	// Forbidden are the names of targets whose addresses are not allowed, in order.
	Forbidden []string
}

// Summary returns a summary of the current configuration.
func (t *Table) Summary() Summary {
	t.mu.Lock()
	current := t.current
	t.mu.Unlock()
	if current == nil {
		return Summary{}
	}
	s := Summary{Revision: current.Revision, Targets: len(current.Addresses)}
	for _, name := range slices.Sorted(maps.Keys(current.Addresses)) {
		if !t.allowed.Allows(current.Addresses[name]) {
			s.Forbidden = append(s.Forbidden, name)
		}
	}
	return s
}
