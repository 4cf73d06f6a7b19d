package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Relay is one running relay.
type Relay struct {
	// ID is generated at start: a restarted relay has a new id.
	ID string `json:"-"`
	// URL is where other relays reach it.
	URL       string    `json:"url"`
	Version   string    `json:"version"`
	Commit    string    `json:"commit"`
	StartedAt time.Time `json:"started_at"`
}

// Connection is the tunnel of one replica of an agent at one relay.
type Connection struct {
	AgentID int64 `json:"-"`
	// ID is random: a positive number of 63 bits.
	ID int64 `json:"-"`
	// RelayID is the relay that holds it.
	RelayID      string    `json:"relay_id"`
	ProjectID    int64     `json:"project_id"`
	Version      string    `json:"version"`
	Commit       string    `json:"commit"`
	PodNamespace string    `json:"pod_namespace"`
	PodName      string    `json:"pod_name"`
	ConnectedAt  time.Time `json:"connected_at"`
	// Republished is how often its connected event was published again, after another relay published it as
	// lost by mistake.
	Republished int `json:"revived,omitempty"`
}

const (
	relayPrefix      = "relay."
	connectionPrefix = "connection."
)

// Key of a relay's lease.
func (r Relay) Key() string { return relayPrefix + r.ID }

// Key of a connection's entry.
func (c Connection) Key() string { return connectionKey{c.AgentID, c.ID}.String() }

type connectionKey struct{ agent, id int64 }

func (k connectionKey) String() string {
	return connectionPrefix + strconv.FormatInt(k.agent, 10) + "." + strconv.FormatInt(k.id, 10)
}

var errKey = errors.New("is not a key of the registry")

func parseConnectionKey(key string) (connectionKey, error) {
	rest, _ := strings.CutPrefix(key, connectionPrefix)
	agent, id, _ := strings.Cut(rest, ".")
	a, errAgent := strconv.ParseInt(agent, 10, 64)
	i, errID := strconv.ParseInt(id, 10, 64)
	if k := (connectionKey{a, i}); errAgent == nil && errID == nil && a > 0 && i > 0 && k.String() == key {
		return k, nil
	}
	return connectionKey{}, fmt.Errorf("%.100q %w", key, errKey)
}

func decode[T any](key string, value []byte) (T, error) {
	var out T
	if err := json.Unmarshal(value, &out); err != nil {
		return out, fmt.Errorf("decode entry %.100q of the registry: %w", key, err)
	}
	return out, nil
}
