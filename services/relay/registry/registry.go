package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Registry is made by [New].
type Registry struct {
	mu          sync.Mutex
	relays      map[string]Relay
	connections map[connectionKey]Connection
	// Indexes of connections, with and without a lease.
	agents   map[int64]map[int64]struct{}
	projects map[int64]map[connectionKey]struct{}
	held     map[string]map[connectionKey]struct{}
	waiting  map[int64]map[chan struct{}]struct{}
	// doubted are the keys that have not been seen since the last [Registry.Doubt].
	doubted map[string]struct{}
}

// New makes an empty one.
func New() *Registry {
	return &Registry{
		relays: map[string]Relay{}, connections: map[connectionKey]Connection{}, agents: map[int64]map[int64]struct{}{}, projects: map[int64]map[connectionKey]struct{}{},
		held: map[string]map[connectionKey]struct{}{}, waiting: map[int64]map[chan struct{}]struct{}{},
	}
}

// Put takes an entry that was made or changed. One that it does not understand changes nothing.
func (r *Registry) Put(key string, value []byte) error {
	r.mu.Lock()
	delete(r.doubted, key)
	r.mu.Unlock()
	switch {
	case strings.HasPrefix(key, relayPrefix):
		relay, err := decode[Relay](key, value)
		if err != nil {
			return err
		}
		relay.ID = strings.TrimPrefix(key, relayPrefix)
		r.mu.Lock()
		defer r.mu.Unlock()
		_, known := r.relays[relay.ID]
		r.relays[relay.ID] = relay
		if !known { // a lease that is refreshed tells nothing new
			for k := range r.held[relay.ID] {
				r.wake(k.agent)
			}
		}
		return nil
	case strings.HasPrefix(key, connectionPrefix):
		k, err := parseConnectionKey(key)
		if err != nil {
			return err
		}
		c, err := decode[Connection](key, value)
		if err != nil {
			return err
		}
		c.AgentID, c.ID = k.agent, k.id
		r.mu.Lock()
		defer r.mu.Unlock()
		r.remove(k)
		r.connections[k] = c
		add(r.agents, k.agent, k.id)
		add(r.projects, c.ProjectID, k)
		add(r.held, c.RelayID, k)
		if _, leased := r.relays[c.RelayID]; leased {
			r.wake(k.agent)
		}
		return nil
	}
	return fmt.Errorf("%.100q %w", key, errKey)
}

// Delete takes that an entry was deleted or has expired. It returns the connection that is no more.
func (r *Registry) Delete(key string) (gone Connection, was bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, is := strings.CutPrefix(key, relayPrefix); is {
		delete(r.relays, id)
	} else if k, err := parseConnectionKey(key); err == nil {
		return r.remove(k)
	}
	return Connection{}, false
}

func (r *Registry) remove(k connectionKey) (Connection, bool) {
	c, known := r.connections[k]
	if !known {
		return c, false
	}
	delete(r.connections, k)
	drop(r.agents, k.agent, k.id)
	drop(r.projects, c.ProjectID, k)
	drop(r.held, c.RelayID, k)
	return c, true
}

// Doubt begins anew with what is there: all of it counts until [Registry.Dispel].
func (r *Registry) Doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubted = make(map[string]struct{}, len(r.relays)+len(r.connections))
	for id := range r.relays {
		r.doubted[relayPrefix+id] = struct{}{}
	}
	for k := range r.connections {
		r.doubted[k.String()] = struct{}{}
	}
}

// Dispel drops what was there at [Registry.Doubt] and has not been put since, and returns the connections among it.
func (r *Registry) Dispel() (gone []Connection) {
	r.mu.Lock()
	doubted := r.doubted
	r.doubted = nil
	r.mu.Unlock()
	for key := range doubted {
		if c, was := r.Delete(key); was {
			gone = append(gone, c)
		}
	}
	return gone
}

// Agent returns the connections of an agent, the oldest first.
func (r *Registry) Agent(id int64) []Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]connectionKey, 0, len(r.agents[id]))
	for c := range r.agents[id] {
		keys = append(keys, connectionKey{id, c})
	}
	return r.leased(keys)
}

// Project returns the connections of a project's agents, the oldest first.
func (r *Registry) Project(id int64) []Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]connectionKey, 0, len(r.projects[id]))
	for k := range r.projects[id] {
		keys = append(keys, k)
	}
	return r.leased(keys)
}

func (r *Registry) leased(keys []connectionKey) []Connection {
	found := make([]Connection, 0, len(keys))
	for _, k := range keys {
		if c := r.connections[k]; r.has(c.RelayID) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b Connection) int {
		return cmp.Or(a.ConnectedAt.Compare(b.ConnectedAt), cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.ID, b.ID))
	})
	return found
}

func (r *Registry) has(relay string) bool {
	_, known := r.relays[relay]
	return known
}

// Relay returns a relay whose lease is there.
func (r *Registry) Relay(id string) (Relay, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	relay, known := r.relays[id]
	return relay, known
}

// Connections counts all that there are.
func (r *Registry) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.connections)
}

// Relays are those whose leases are there, by their ids.
func (r *Registry) Relays() []Relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := slices.Collect(maps.Values(r.relays))
	slices.SortFunc(found, func(a, b Relay) int { return cmp.Compare(a.ID, b.ID) })
	return found
}

// Orphans are the connections whose relay has no lease: what a relay that was killed has left.
func (r *Registry) Orphans() []Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Connection
	for relay, connections := range r.held {
		if !r.has(relay) {
			for k := range connections {
				found = append(found, r.connections[k])
			}
		}
	}
	slices.SortFunc(found, func(a, b Connection) int { return cmp.Or(cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.ID, b.ID)) })
	return found
}

// Arrivals returns a channel that receives when a connection of the agent may have come. Who looks at [Registry.Agent] after that misses none. The caller calls stop.
func (r *Registry) Arrivals(agent int64) (arrived <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	add(r.waiting, agent, ch)
	return ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		drop(r.waiting, agent, ch)
	}
}

// Arrived wakes who waits for an agent, of whom this relay knows before the registry does.
func (r *Registry) Arrived(agent int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake(agent)
}

func (r *Registry) wake(agent int64) {
	for ch := range r.waiting[agent] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func add[K, V comparable](index map[K]map[V]struct{}, key K, value V) {
	if index[key] == nil {
		index[key] = map[V]struct{}{}
	}
	index[key][value] = struct{}{}
}

func drop[K, V comparable](index map[K]map[V]struct{}, key K, value V) {
	delete(index[key], value)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}
