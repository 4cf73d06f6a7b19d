package route_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/routable"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/router/route"
)

// fakeMap is a cell map in memory.
type fakeMap struct {
	cells         map[topology.Cell]cellmap.Cell
	deleted       map[topology.Cell]bool
	organizations map[int64]topology.Cell
	moves         map[topology.Cell]cellmap.Move // of organization 11
	legacy        topology.Cell
}

func (m *fakeMap) Cell(name topology.Cell) (cellmap.Cell, bool) {
	c, found := m.cells[name]
	return c, found
}
func (m *fakeMap) CellDeleted(name topology.Cell) bool { return m.deleted[name] }
func (m *fakeMap) Organization(id int64) (topology.Cell, bool) {
	name, found := m.organizations[id]
	return name, found
}

func (m *fakeMap) Moved(from topology.Cell, organization int64) (cellmap.Move, bool) {
	move, found := m.moves[from]
	return move, found && organization == 11
}
func (m *fakeMap) Legacy() (topology.Cell, bool) { return m.legacy, m.legacy != "" }
func (m *fakeMap) Key(cell topology.Cell, id string) (ed25519.PublicKey, bool) {
	return m.cells[cell].Keys.Find(id)
}

// privateKey is the key k1 of a cell.
func privateKey(cell topology.Cell) ed25519.PrivateKey {
	seed := [ed25519.SeedSize]byte{}
	copy(seed[:], cell)
	return ed25519.NewKeyFromSeed(seed[:])
}

func cell(name topology.Cell, state cellmap.State) cellmap.Cell {
	public, _ := privateKey(name).Public().(ed25519.PublicKey)
	return cellmap.Cell{
		Name: name, URL: "http://" + string(name), State: state, Keys: jobtoken.KeySet{{ID: "k1", Public: public}},
	}
}

func newMap() *fakeMap {
	m := &fakeMap{
		cells: map[topology.Cell]cellmap.Cell{}, deleted: map[topology.Cell]bool{"removed": true},
		organizations: map[int64]topology.Cell{7: "two", 8: "maintained", 9: "lost", 10: "removed"},
		moves:         map[topology.Cell]cellmap.Move{"one": {To: "two", Number: 1}, "two": {To: "old", Number: 2}},
	}
	for _, name := range []topology.Cell{"one", "two", "old"} {
		m.cells[name] = cell(name, cellmap.Active)
	}
	m.cells["maintained"] = cell("maintained", cellmap.Maintenance)
	return m
}

func runnerToken(t testing.TB, cell topology.Cell, organization int64) string {
	t.Helper()
	token, err := routable.New(routable.Runner, routable.Payload{Cell: cell, Organization: organization})
	require.NoError(t, err)
	return token
}

// jobToken returns a token that expired long ago.
func jobToken(t testing.TB, cell topology.Cell, keyID string, key ed25519.PrivateKey) string {
	t.Helper()
	token, err := jobtoken.Sign(keyID, key, jobtoken.Claims{
		ID: "x", JobID: 1, ProjectID: 2, OrganizationID: 7, Cell: cell, Scopes: []jobtoken.Scope{jobtoken.ScopeUpdate},
		IssuedAt: time.Unix(1, 0), ExpiresAt: time.Unix(2, 0),
	})
	require.NoError(t, err)
	return token
}

func TestDecide(t *testing.T) {
	t.Parallel()
	personal, err := routable.New(routable.Personal, routable.Payload{Cell: "one", Organization: 7, User: 3})
	require.NoError(t, err)
	routableToken := runnerToken(t, "one", 0)
	mistyped := routableToken[:len(routableToken)-1] + "_"
	signed := jobToken(t, "one", "k1", privateKey("one"))

	const refused, unknown = errcode.PermissionDenied, errcode.Unavailable
	type expected struct {
		cell topology.Cell // of the decision
		code fault.Code    // empty without an error
	}
	for name, test := range map[string]struct {
		token string
		// current and stale are for a current map and for one that was not read for a while, both without a legacy cell.
		// withLegacy is for a current map with the legacy cell old.
		current, stale, withLegacy expected
	}{
		"instance runner": {
			routableToken, expected{"one", ""}, expected{"one", ""}, expected{"one", ""},
		},
		"organization that was moved": {
			runnerToken(t, "one", 7), expected{"two", ""}, expected{"two", ""}, expected{"two", ""},
		},
		"organization that cells moved on": {
			runnerToken(t, "one", 11), expected{"old", ""}, expected{"old", ""}, expected{"old", ""},
		},
		"organization that is not in the map": {
			runnerToken(t, "one", 6), expected{"one", ""}, expected{"one", ""}, expected{"one", ""},
		},
		"user of an organization that was moved": {
			personal, expected{"two", ""}, expected{"two", ""}, expected{"two", ""},
		},
		"organization without a cell": {
			runnerToken(t, "", 7), expected{"two", ""}, expected{"two", ""}, expected{"two", ""},
		},
		"no cell and no organization of the map": {
			runnerToken(t, "", 6), expected{"", refused}, expected{"", unknown}, expected{"old", ""},
		},
		"cell in maintenance": {
			runnerToken(t, "maintained", 0),
			expected{"maintained", unknown},
			expected{"maintained", unknown},
			expected{"maintained", unknown},
		},
		"organization of a cell in maintenance": {
			runnerToken(t, "one", 8),
			expected{"maintained", unknown},
			expected{"maintained", unknown},
			expected{"maintained", unknown},
		},
		"cell that the map does not have": {
			runnerToken(t, "lost", 0), expected{"", unknown}, expected{"", unknown}, expected{"", unknown},
		},
		"organization of a cell that the map does not have": {
			runnerToken(t, "one", 9), expected{"", unknown}, expected{"", unknown}, expected{"", unknown},
		},
		"cell that was removed": {
			runnerToken(t, "removed", 0), expected{"", refused}, expected{"", unknown}, expected{"", refused},
		},
		"organization of a cell that was removed": {
			runnerToken(t, "one", 10), expected{"", refused}, expected{"", unknown}, expected{"", refused},
		},
		"token with a wrong checksum": {
			mistyped, expected{"", refused}, expected{"", unknown}, expected{"old", ""},
		},
		"old token": {
			"glrt-abc_def", expected{"", refused}, expected{"", unknown}, expected{"old", ""},
		},
		"no token": {
			"", expected{"", refused}, expected{"", unknown}, expected{"old", ""},
		},
		"expired token of a job, whose organization was moved": {
			signed, expected{"one", ""}, expected{"one", ""}, expected{"one", ""},
		},
		"token of a job with a wrong signature": {
			jobToken(t, "one", "k1", privateKey("two")),
			expected{"", refused},
			expected{"", refused},
			expected{"", refused},
		},
		"token of a job with a key that the cell does not have": {
			jobToken(t, "one", "k2", privateKey("one")),
			expected{"", refused},
			expected{"", unknown},
			expected{"", refused},
		},
		"token of a job of a cell that the map does not have": {
			jobToken(t, "lost", "k1", privateKey("lost")),
			expected{"", unknown},
			expected{"", unknown},
			expected{"", unknown},
		},
		"token of a job of a cell that was removed": {
			jobToken(t, "removed", "k1", privateKey("removed")),
			expected{"", refused},
			expected{"", unknown},
			expected{"", refused},
		},
		"token of a job in maintenance": {
			jobToken(t, "maintained", "k1", privateKey("maintained")),
			expected{"maintained", unknown},
			expected{"maintained", unknown},
			expected{"maintained", unknown},
		},
		"old token of a job": {
			"glcbt-64_abc", expected{"", refused}, expected{"", unknown}, expected{"old", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := func(legacy topology.Cell, current bool, want expected) {
				m := newMap()
				m.legacy = legacy
				got, err := route.NewTable(m).Decide(test.token, current)
				if want.code == "" {
					require.NoError(t, err)
				} else {
					require.Equal(t, want.code, fault.CodeOf(err), "%v", err)
					require.True(t, test.token == "" || !strings.Contains(err.Error(), test.token))
				}
				require.Equal(t, want.cell, got.Name)
			}
			check("", true, test.current)
			check("", false, test.stale)
			check("old", true, test.withLegacy)
		})
	}
}

func TestLegacyCellThatIsNotInTheMapIsUnavailable(t *testing.T) {
	t.Parallel()
	m := newMap()
	m.legacy = "lost"
	_, err := route.NewTable(m).Decide("old", true)
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
}

// FuzzDecide tries any token: a refusal without a current map is about a wrong signature.
func FuzzDecide(f *testing.F) {
	f.Add(runnerToken(f, "one", 7), true)
	f.Add(runnerToken(f, "removed", 0), false)
	f.Add(jobToken(f, "one", "k1", privateKey("one")), true)
	f.Add(jobToken(f, "two", "k1", privateKey("one")), false)
	f.Add("", false)
	f.Fuzz(func(t *testing.T, token string, current bool) {
		m := newMap()
		got, err := route.NewTable(m).Decide(token, current)
		switch fault.CodeOf(err) {
		case "":
			require.Contains(t, m.cells, got.Name)
			require.Equal(t, cellmap.Active, got.State)
		case errcode.PermissionDenied:
			require.True(t, current || jobtoken.Is(token))
		case errcode.Unavailable:
		default:
			require.NoError(t, err)
		}
	})
}
