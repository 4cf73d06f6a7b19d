package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Registry is the in-memory copy of the bucket: relays and connections. It may be used by many goroutines.
// Returned slices are copies.
type Registry struct {
	mu          sync.Mutex
	relays      map[string]Relay
	connections map[connectionKey]Connection
	// Indexes of all connections, also those of relays without a lease: by agent, project and relay.
	agents   map[int64]map[int64]struct{}
	projects map[int64]map[connectionKey]struct{}
	byRelay  map[string]map[connectionKey]struct{}
	// subscribers of each agent's connections.
	subscribers map[int64]map[chan struct{}]struct{}
	// stale are the keys that were not seen since [Registry.BeginResync].
	stale map[string]struct{}
}

// New makes an empty registry.
func New() *Registry {
	return &Registry{
		relays: map[string]Relay{}, connections: map[connectionKey]Connection{},
		agents: map[int64]map[int64]struct{}{}, projects: map[int64]map[connectionKey]struct{}{},
		byRelay: map[string]map[connectionKey]struct{}{}, subscribers: map[int64]map[chan struct{}]struct{}{},
	}
}

// Put handles an entry that was created or updated. An invalid entry changes nothing.
func (r *Registry) Put(key string, value []byte) error {
	r.mu.Lock()
	delete(r.stale, key)
	r.mu.Unlock()
	switch {
	case strings.HasPrefix(key, relayPrefix):
		return r.putRelay(key, value)
	case strings.HasPrefix(key, connectionPrefix):
		return r.putConnection(key, value)
	}
	return fmt.Errorf("%.100q %w", key, errKey)
}

func (r *Registry) putRelay(key string, value []byte) error {
	relay, err := decode[Relay](key, value)
	if err != nil {
		return err
	}
	relay.ID = strings.TrimPrefix(key, relayPrefix)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.relays[relay.ID]
	r.relays[relay.ID] = relay
	if known { // a refreshed lease changes nothing
		return nil
	}
	for k := range r.byRelay[relay.ID] {
		r.notify(k.agent)
	}
	return nil
}

func (r *Registry) putConnection(key string, value []byte) error {
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
	add(r.byRelay, c.RelayID, k)
	if r.hasLease(c.RelayID) {
		r.notify(k.agent)
	}
	return nil
}

// Delete handles an entry that was deleted or has expired. It returns the connection that it removed.
func (r *Registry) Delete(key string) (removed Connection, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, ok := strings.CutPrefix(key, relayPrefix); ok {
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
	removeIndex(r.agents, k.agent, k.id)
	removeIndex(r.projects, c.ProjectID, k)
	removeIndex(r.byRelay, c.RelayID, k)
	return c, true
}

// BeginResync marks every entry as stale, before all of them are read again. Stale entries stay valid until
// EndResync.
func (r *Registry) BeginResync() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stale = make(map[string]struct{}, len(r.relays)+len(r.connections))
	for id := range r.relays {
		r.stale[relayPrefix+id] = struct{}{}
	}
	for k := range r.connections {
		r.stale[k.String()] = struct{}{}
	}
}

// EndResync deletes the entries that are still stale, and returns the connections among them.
func (r *Registry) EndResync() (removed []Connection) {
	r.mu.Lock()
	stale := r.stale
	r.stale = nil
	r.mu.Unlock()
	for key := range stale {
		if c, found := r.Delete(key); found {
			removed = append(removed, c)
		}
	}
	return removed
}

// Agent returns the connections of an agent, oldest first.
func (r *Registry) Agent(id int64) []Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]connectionKey, 0, len(r.agents[id]))
	for c := range r.agents[id] {
		keys = append(keys, connectionKey{id, c})
	}
	return r.leased(keys)
}

// Project returns the connections of a project's agents, oldest first.
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
		if c := r.connections[k]; r.hasLease(c.RelayID) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b Connection) int {
		return cmp.Or(a.ConnectedAt.Compare(b.ConnectedAt), cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.ID, b.ID))
	})
	return found
}

func (r *Registry) hasLease(relay string) bool {
	_, known := r.relays[relay]
	return known
}

// Relay returns a relay that has a lease.
func (r *Registry) Relay(id string) (Relay, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	relay, known := r.relays[id]
	return relay, known
}

// Connections counts all connections.
func (r *Registry) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.connections)
}

// Relays that have a lease, sorted by id.
func (r *Registry) Relays() []Relay {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := slices.Collect(maps.Values(r.relays))
	slices.SortFunc(found, func(a, b Relay) int { return cmp.Compare(a.ID, b.ID) })
	return found
}

// Orphans are the connections of relays without a lease, such as killed ones.
func (r *Registry) Orphans() []Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Connection
	for relay, connections := range r.byRelay {
		if !r.hasLease(relay) {
			for k := range connections {
				found = append(found, r.connections[k])
			}
		}
	}
	slices.SortFunc(found, func(a, b Connection) int {
		return cmp.Or(cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.ID, b.ID))
	})
	return found
}

// Subscribe returns a channel that receives when a connection of the agent may have been added. Subscribe first and
// then call [Registry.Agent]: no connection is missed. The caller calls unsubscribe.
func (r *Registry) Subscribe(agent int64) (added <-chan struct{}, unsubscribe func()) {
	ch := make(chan struct{}, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	add(r.subscribers, agent, ch)
	return ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		removeIndex(r.subscribers, agent, ch)
	}
}

// Notify wakes the subscribers of an agent. The pool calls it for a local connection before its entry is written.
func (r *Registry) Notify(agent int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify(agent)
}

func (r *Registry) notify(agent int64) {
	for ch := range r.subscribers[agent] {
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

func removeIndex[K, V comparable](index map[K]map[V]struct{}, key K, value V) {
	delete(index[key], value)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}
