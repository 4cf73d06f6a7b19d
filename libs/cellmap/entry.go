package cellmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/topology"
)

// State is what a cell wants routers to do.
type State string

const (
	// Active cells get their requests.
	Active State = "active"
	// Maintenance makes routers answer for the cell: try again later.
	Maintenance State = "maintenance"
)

// Cell is one cell.
type Cell struct {
	// Name is a DNS label. Required.
	Name topology.Cell
	// URL is where routers reach the cell: scheme http or https, host and nothing else. Required.
	URL string
	// RedirectURL is where clients reach the cell without a router. If it is set, routers redirect instead of
	// forwarding. Scheme http or https, host and nothing else. Optional.
	RedirectURL string
	// State. Required.
	State State
	// Keys verify the job tokens of the cell.
	Keys jobtoken.KeySet
}

// Organization is where an organization is.
type Organization struct {
	ID   int64
	Cell topology.Cell
}

// maxGeneration bounds what a writer can do to its own entry: a higher one always exists.
const maxGeneration = int64(1) << 60

// ErrInvalidEntry is wrapped by errors about entries that are malformed.
var ErrInvalidEntry = errors.New("invalid entry of the cell map")

// stored is the JSON form of every entry. Unknown fields are ignored.
type stored struct {
	Generation int64 `json:"generation"`
	// Deleted marks the tombstone of an entry.
	Deleted bool `json:"deleted,omitempty"`

	// Of a cell.
	URL         string           `json:"url,omitempty"`
	RedirectURL string           `json:"redirect_url,omitempty"`
	State       State            `json:"state,omitempty"`
	Keys        *jobtoken.KeySet `json:"keys,omitempty"`

	// Cell of an organization, of the entry legacy, and to which an organization was moved.
	Cell topology.Cell `json:"cell,omitempty"`

	// Number of a move.
	Number int64 `json:"number,omitempty"`
}

// key is the subject of an entry, parsed. One field is set, or for an organization that a cell had, cell and
// organization.
type key struct {
	cell         topology.Cell
	organization int64
	legacy       bool
}

func (k key) subject() string {
	switch {
	case k.isMoved():
		return topology.CellsMoved(k.cell, k.organization)
	case k.cell != "":
		return topology.CellsCell(k.cell)
	case k.legacy:
		return topology.CellsLegacy
	default:
		return topology.CellsOrganization(k.organization)
	}
}

func (k key) isMoved() bool { return k.cell != "" && k.organization != 0 }

// isCell reports whether the entry is that of a cell.
func (k key) isCell() bool { return k.cell != "" && k.organization == 0 }

func parseKey(subject string) (key, error) {
	if subject == topology.CellsLegacy {
		return key{legacy: true}, nil
	}
	if name, found := strings.CutPrefix(subject, topology.CellsCell("")); found {
		if err := topology.ValidateCell(name); err != nil {
			return key{}, fmt.Errorf("%w: %w", ErrInvalidEntry, err)
		}
		return key{cell: topology.Cell(name)}, nil
	}
	if text, found := strings.CutPrefix(subject, strings.TrimSuffix(topology.CellsOrganizations, "*")); found {
		id, err := parseOrganization(text)
		return key{organization: id}, err
	}
	if text, found := strings.CutPrefix(subject, strings.TrimSuffix(topology.CellsMoves, "*.*")); found {
		name, organization, _ := strings.Cut(text, ".")
		if err := topology.ValidateCell(name); err != nil {
			return key{}, fmt.Errorf("%w: %w", ErrInvalidEntry, err)
		}
		id, err := parseOrganization(organization)
		return key{cell: topology.Cell(name), organization: id}, err
	}
	return key{}, fmt.Errorf("%w: unknown subject %q", ErrInvalidEntry, subject)
}

func parseOrganization(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 10) != text {
		return 0, fmt.Errorf("%w: %q is no organization", ErrInvalidEntry, text)
	}
	return id, nil
}

// parse returns a valid entry.
func parse(subject string, data []byte) (key, stored, error) {
	k, err := parseKey(subject)
	if err != nil {
		return key{}, stored{}, err
	}
	if len(data) > topology.MaxCellsEntry {
		return key{}, stored{}, fmt.Errorf("%w: %s has %d bytes", ErrInvalidEntry, subject, len(data))
	}
	var content stored
	if err := json.Unmarshal(data, &content); err != nil {
		return key{}, stored{}, fmt.Errorf("%w: %s: %w", ErrInvalidEntry, subject, err)
	}
	if err := content.validate(k); err != nil {
		return key{}, stored{}, fmt.Errorf("%w: %s: %w", ErrInvalidEntry, subject, err)
	}
	return k, content, nil
}

func (s stored) validate(k key) error {
	if s.Generation <= 0 || s.Generation > maxGeneration {
		return fmt.Errorf("generation %d is not from 1 to %d", s.Generation, maxGeneration)
	}
	switch {
	case s.Deleted:
		return nil
	case k.isMoved() && s.Number <= 0:
		return fmt.Errorf("number %d of a move is not positive", s.Number)
	case k.isCell():
		return s.asCell(k.cell).Validate()
	default:
		return topology.ValidateCell(string(s.Cell))
	}
}

func (s stored) asCell(name topology.Cell) Cell {
	c := Cell{Name: name, URL: s.URL, RedirectURL: s.RedirectURL, State: s.State}
	if s.Keys != nil {
		c.Keys = *s.Keys
	}
	return c
}

// entry returns the JSON form without a generation.
func (c Cell) entry() stored {
	return stored{URL: c.URL, RedirectURL: c.RedirectURL, State: c.State, Keys: &c.Keys}
}

// Validate returns an error for a cell that no router could use.
func (c Cell) Validate() error {
	if err := topology.ValidateCell(string(c.Name)); err != nil {
		return err
	}
	if c.State != Active && c.State != Maintenance {
		return fmt.Errorf("state %q is neither %s nor %s", c.State, Active, Maintenance)
	}
	if err := validateURL(c.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if c.RedirectURL != "" {
		if err := validateURL(c.RedirectURL); err != nil {
			return fmt.Errorf("redirect_url: %w", err)
		}
	}
	return c.Keys.Validate()
}

func validateURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("%q is no URL", text)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || (u.Path != "" && u.Path != "/") ||
		u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Opaque != "" {
		return fmt.Errorf("%q is not http or https, a host and an optional port, such as https://one.example.org", text)
	}
	return nil
}

// nextGeneration is higher than that of the entry before. It is also higher than that of an entry that a failover of
// NATS has lost, if clocks differ less than the time since then.
func nextGeneration(previous int64, now time.Time) int64 { return max(previous+1, now.UnixMilli()) }
