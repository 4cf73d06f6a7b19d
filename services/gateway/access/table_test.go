package access

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

const owner, guest, stranger = 1, 2, 3

func entry(shares ...Share) Entry {
	return Entry{ID: "id", Name: "hello", OwnerID: owner, Running: true, State: "running", Shares: shares}
}

func table(shares ...Share) *Table {
	t := New()
	t.Set(entry(shares...))
	return t
}

func TestWhoMayEnter(t *testing.T) {
	port := Share{UserID: guest, Port: 3000}
	all := Share{UserID: guest}
	for name, c := range map[string]struct {
		user   int64
		port   int
		shares []Share
		want   error
	}{
		"the owner":                          {owner, 3000, nil, nil},
		"the owner, by SSH":                  {owner, SSH, nil, nil},
		"a stranger":                         {stranger, 3000, []Share{port, all}, ErrUnknown},
		"nobody":                             {0, 3000, []Share{{UserID: 0}}, ErrUnknown},
		"a guest of a port":                  {guest, 3000, []Share{port}, nil},
		"a guest of a port, at another port": {guest, 80, []Share{port}, ErrUnknown},
		"a guest of a port, by SSH":          {guest, SSH, []Share{port}, ErrUnknown},
		"a guest of everything":              {guest, 80, []Share{all}, nil},
		"a guest of everything, by SSH":      {guest, SSH, []Share{all}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := table(c.shares...).Enter(c.user, "hello", c.port)
			require.ErrorIs(t, err, c.want)
		})
	}
	_, err := table().Enter(owner, "other", 80)
	require.ErrorIs(t, err, ErrUnknown)
}

func TestGrantEndsWithTheRight(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Table)
		want   error
	}{
		"no longer shared": {func(t *Table) { t.Set(entry()) }, ErrRevoked},
		"shared less":      {func(t *Table) { t.Set(entry(Share{UserID: guest, Port: 80})) }, ErrRevoked},
		"blocked":          {func(t *Table) { t.SetBlocked(guest, true) }, ErrRevoked},
		"removed":          {func(t *Table) { t.Remove("id") }, ErrStopped},
		"stopped": {func(t *Table) {
			e := entry(Share{UserID: guest})
			e.Running = false
			t.Set(e)
		}, ErrStopped},
		"unchanged": {func(t *Table) {
			t.Set(entry(Share{UserID: guest}))
			t.SetBlocked(stranger, true)
			t.SetBlocked(guest, false)
			t.Remove("other")
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			table := table(Share{UserID: guest})
			g, err := table.Enter(guest, "hello", 3000)
			require.NoError(t, err)
			require.NoError(t, context.Cause(g.Context()))
			c.change(table)
			require.ErrorIs(t, context.Cause(g.Context()), c.want)
			g.Close()
		})
	}
}

func TestClosedGrantDoesNotEnd(t *testing.T) {
	table := table()
	g, err := table.Enter(owner, "hello", 80)
	require.NoError(t, err)
	g.Close()
	table.Remove("id")
	require.NoError(t, context.Cause(g.Context()))
	g.Close()
}

func TestStoppedWorkspaceIsKnownToThoseWhoMayEnter(t *testing.T) {
	table := New()
	table.Set(Entry{ID: "id", Name: "hello", OwnerID: owner, State: "stopped"})
	g, err := table.Enter(owner, "hello", 80)
	require.ErrorIs(t, err, ErrNotRunning)
	require.Equal(t, "stopped", g.Entry.State)
	_, err = table.Enter(stranger, "hello", 80)
	require.ErrorIs(t, err, ErrUnknown)
}

func TestChangesAreSeenByThoseWhoMayEnter(t *testing.T) {
	table := table()
	_, _, err := table.Watch(stranger, "hello", 80)
	require.ErrorIs(t, err, ErrUnknown)
	e, changed, err := table.Watch(owner, "hello", 80)
	require.NoError(t, err)
	require.Equal(t, "running", e.State)
	select {
	case <-changed:
		t.Fatal("nothing has changed")
	default:
	}
	table.Set(Entry{ID: "id", Name: "hello", OwnerID: owner, State: "stopping"})
	<-changed
	e, changed, err = table.Watch(owner, "hello", 80)
	require.NoError(t, err)
	require.Equal(t, "stopping", e.State)
	table.Remove("id")
	<-changed
}

func TestNameBelongsToTheNewestWorkspace(t *testing.T) {
	table := table()
	table.Set(Entry{ID: "second", Name: "hello", OwnerID: guest, Running: true})
	table.Remove("id") // the first one ends later
	_, err := table.Enter(guest, "hello", 80)
	require.NoError(t, err)
	table.Set(Entry{ID: "second", Name: "renamed", OwnerID: guest, Running: true})
	_, err = table.Enter(guest, "hello", 80)
	require.ErrorIs(t, err, ErrUnknown)
}

// FuzzOpenGrantsAreAllowed: whatever happens in whatever order, each grant that is open would be given again.
func FuzzOpenGrantsAreAllowed(f *testing.F) {
	for seed := range 100 {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		steps := make([]byte, 100)
		for i := range steps {
			steps[i] = byte(random.Uint32())
		}
		f.Add(steps)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		next := func(n int) int {
			if len(steps) == 0 {
				return 0
			}
			value := int(steps[0]) % n
			steps = steps[1:]
			return value
		}
		table := New()
		var grants []*Grant
		for len(steps) > 0 {
			id, user := string(rune('a'+next(2))), int64(1+next(3))
			switch next(4) {
			case 0:
				table.Set(Entry{
					ID: id, Name: id, OwnerID: user, Running: next(3) > 0,
					Shares: []Share{{UserID: int64(1 + next(3)), Port: next(3)}},
				})
			case 1:
				table.SetBlocked(user, next(2) == 0)
			case 2:
				table.Remove(id)
			default:
				if g, err := table.Enter(user, id, next(3)); err == nil {
					grants = append(grants, g)
				}
			}
			for _, g := range grants {
				if context.Cause(g.Context()) != nil {
					continue
				}
				again, err := table.Enter(g.UserID, g.Entry.Name, g.Port)
				require.NoError(t, err, "an open grant is not allowed: %+v", g)
				again.Close()
			}
		}
	})
}
