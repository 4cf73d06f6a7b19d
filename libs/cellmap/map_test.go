package cellmap_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	home    = topology.Cell("local")
	timeout = time.Minute
)

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func cell(name topology.Cell) cellmap.Cell {
	public := ed25519.PublicKey(slices.Repeat([]byte{1}, ed25519.PublicKeySize))
	return cellmap.Cell{
		Name: name, URL: "http://" + string(name) + ":8080", State: cellmap.Active,
		Keys: jobtoken.KeySet{{ID: "k1", Public: public}},
	}
}

func TestEntriesAreApplied(t *testing.T) {
	t.Parallel()
	m := cellmap.NewEmpty(logger(t))
	changed := m.Changed()
	require.False(t, m.HasCells())
	apply(t, m, "cell.one", `{"generation":1,"url":"http://one:80","state":"active","unknown":true,"keys":{"keys":[]}}`)
	select {
	case <-changed:
	default:
		require.Fail(t, "a change is not announced")
	}
	apply(t, m, "cell.two",
		`{"generation":1,"url":"https://two","redirect_url":"https://two.example.org/","state":"maintenance"}`)
	apply(t, m, "organization.7", `{"generation":3,"cell":"two"}`)
	apply(t, m, "organization.9", `{"generation":3,"cell":"gone"}`)
	apply(t, m, "legacy", `{"generation":1,"cell":"one"}`)

	one, found := m.Cell("one")
	require.True(t, found)
	require.Equal(t, cellmap.Cell{Name: "one", URL: "http://one:80", State: cellmap.Active, Keys: jobtoken.KeySet{}}, one)
	require.Len(t, m.Cells(), 2)
	require.Equal(t, topology.Cell("two"), m.Cells()[1].Name)
	name, found := m.Organization(7)
	require.True(t, found)
	require.Equal(t, topology.Cell("two"), name)
	require.Equal(t, []cellmap.Organization{{ID: 7, Cell: "two"}, {ID: 9, Cell: "gone"}}, m.Organizations())
	name, found = m.Legacy()
	require.True(t, found)
	require.Equal(t, topology.Cell("one"), name)

	require.False(t, m.CellDeleted("one"))
	require.False(t, m.CellDeleted("gone"), "an unknown cell was not removed")
	apply(t, m, "organization.7", `{"generation":4,"deleted":true}`)
	apply(t, m, "legacy", `{"generation":2,"deleted":true}`)
	apply(t, m, "cell.one", `{"generation":2,"deleted":true}`)
	_, found = m.Organization(7)
	require.False(t, found)
	_, found = m.Legacy()
	require.False(t, found)
	_, found = m.Cell("one")
	require.False(t, found)
	require.True(t, m.CellDeleted("one"))
	require.Len(t, m.Cells(), 1)
	require.Len(t, m.Organizations(), 1)
	require.True(t, m.HasCells())
	apply(t, m, "cell.two", `{"generation":2,"url":"http://two","state":"active"}`)
	apply(t, m, "cell.two", `{"generation":3,"deleted":true}`)
	require.False(t, m.HasCells(), "each change of a cell counts once")
}

func apply(t *testing.T, m *cellmap.Map, entry, data string) {
	t.Helper()
	require.NoError(t, m.Apply("$KV.CELLS."+entry, []byte(data)))
}

// TestNewestGenerationWins applies the generations of an entry in any order.
func TestNewestGenerationWins(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		m := cellmap.NewEmpty(logger(t))
		for _, generation := range random.Perm(9) {
			content := fmt.Sprintf(`{"generation":%d,"cell":"c%d"}`, generation+1, generation+1)
			if generation == 3 {
				content = `{"generation":4,"deleted":true}`
			}
			apply(t, m, "organization.1", content)
		}
		apply(t, m, "organization.1", `{"generation":9,"cell":"other"}`)
		name, found := m.Organization(1)
		require.True(t, found)
		require.Equal(t, topology.Cell("c9"), name)
	}
}

func TestMalformedEntriesChangeNothing(t *testing.T) {
	t.Parallel()
	m := cellmap.NewEmpty(logger(t))
	apply(t, m, "cell.one", `{"generation":1,"url":"http://one","state":"active"}`)
	apply(t, m, "organization.1", `{"generation":1,"cell":"one"}`)
	for subject, contents := range map[string][]string{
		"cell.one": {
			``, `[]`, `{}`, `{"generation":0,"url":"http://x","state":"active"}`,
			`{"generation":-1,"url":"http://x","state":"active"}`,
			`{"generation":9000000000000000000,"url":"http://x","state":"active"}`,
			`{"generation":2,"url":"http://x","state":"paused"}`, `{"generation":2,"url":"http://x"}`,
			`{"generation":2,"url":"ftp://x","state":"active"}`, `{"generation":2,"url":"http://","state":"active"}`,
			`{"generation":2,"url":"http://x/path","state":"active"}`, `{"generation":2,"url":"http://a:b@x","state":"active"}`,
			`{"generation":2,"url":"http://x?q","state":"active"}`, `{"generation":2,"url":"one:80","state":"active"}`,
			`{"generation":2,"url":"http://x","redirect_url":"x","state":"active"}`,
			`{"generation":2,"url":"http://x","state":"active","keys":{"keys":[{"kty":"RSA"}]}}`,
			`{"generation":2,"url":"http://x","state":"active","padding":"` + strings.Repeat("x", topology.MaxCellsEntry) + `"}`,
		},
		"cell.One":                         {`{"generation":2,"url":"http://x","state":"active"}`},
		"cell.":                            {`{"generation":2,"url":"http://x","state":"active"}`},
		"cell.one.x":                       {`{"generation":2,"url":"http://x","state":"active"}`},
		"organization.1":                   {`{"generation":2}`, `{"generation":2,"cell":"A"}`},
		"organization.0":                   {`{"generation":2,"cell":"one"}`},
		"organization.-1":                  {`{"generation":2,"cell":"one"}`},
		"organization.01":                  {`{"generation":2,"cell":"one"}`},
		"organization.x":                   {`{"generation":2,"cell":"one"}`},
		"organization.9223372036854775808": {`{"generation":2,"cell":"one"}`},
		"legacy":                           {`{"generation":2}`},
		"legacy.x":                         {`{"generation":2,"cell":"one"}`},
		"x":                                {`{"generation":2,"cell":"one"}`},
	} {
		for _, content := range contents {
			err := m.Apply("$KV.CELLS."+subject, []byte(content))
			require.ErrorIs(t, err, cellmap.ErrInvalidEntry, "%s %s", subject, content)
		}
	}
	one, _ := m.Cell("one")
	require.Equal(t, "http://one", one.URL)
	require.Len(t, m.Cells(), 1)
	require.Len(t, m.Organizations(), 1)
}

// FuzzApply applies anything. Whatever a map accepts, it can be used.
func FuzzApply(f *testing.F) {
	f.Add("cell.one", []byte(`{"generation":1,"url":"http://one","state":"active","keys":{"keys":[]}}`))
	f.Add("organization.1", []byte(`{"generation":1,"cell":"one"}`))
	f.Add("legacy", []byte(`{"generation":1,"deleted":true}`))
	f.Fuzz(func(t *testing.T, entry string, data []byte) {
		m := cellmap.NewEmpty(slog.New(slog.DiscardHandler))
		if err := m.Apply("$KV.CELLS."+entry, data); err != nil {
			require.ErrorIs(t, err, cellmap.ErrInvalidEntry)
			return
		}
		for _, c := range m.Cells() {
			require.NoError(t, c.Validate())
			require.Equal(t, entry, "cell."+string(c.Name))
		}
		for _, o := range m.Organizations() {
			require.Equal(t, entry, fmt.Sprintf("organization.%d", o.ID))
		}
	})
}

// system is a NATS server with the bucket.
type system struct {
	server *natsd.Server
	writer cellmap.Writer
}

func startSystem(t *testing.T) *system {
	t.Helper()
	s := &system{server: natstest.Server(t)}
	js := natstest.JetStream(t, s.server)
	require.NoError(t, topology.Ensure(natstest.Context(t), js, home, topology.Options{StorageBytes: 100 << 20}))
	s.writer = cellmap.Writer{JetStream: js}
	return s
}

// follow returns a map that is loaded.
func (s *system) follow(t *testing.T) *cellmap.Map {
	t.Helper()
	m, err := cellmap.New(cellmap.Config{
		JetStream: natstest.JetStream(t, s.server), Cell: home, Logger: logger(t), Probe: 20 * time.Millisecond,
		StaleAfter: time.Millisecond,
	})
	require.NoError(t, err)
	ready := make(chan struct{})
	run(t, func(ctx context.Context) { m.Run(ctx, func() { close(ready) }) })
	select {
	case <-ready:
	case <-time.After(timeout):
		require.Fail(t, "the map is not loaded", "%v", m.Check(t.Context()))
	}
	require.True(t, m.Ready())
	return m
}

// run runs until the test ends.
func run(t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func until(t *testing.T, m *cellmap.Map, holds func() bool) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		changed := m.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Fail(t, "the map does not change")
		}
	}
}

func TestWritesReachMaps(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	ctx := natstest.Context(t)
	put := func(changed bool, err error) bool {
		t.Helper()
		require.NoError(t, err)
		return changed
	}
	require.True(t, put(s.writer.PutCell(ctx, cell("one"))))
	require.False(t, put(s.writer.PutCell(ctx, cell("one"))), "the same again")
	m := s.follow(t)
	stored, found := m.Cell("one")
	require.True(t, found)
	require.Equal(t, cell("one"), stored)
	key, found := m.Key("one", "k1")
	require.True(t, found)
	require.Equal(t, cell("one").Keys[0].Public, key)
	_, found = m.Key("one", "k2")
	require.False(t, found)
	_, found = m.Key("two", "k1")
	require.False(t, found)

	require.True(t, put(s.writer.PutCell(ctx, cell("two"))))
	require.True(t, put(s.writer.PutOrganization(ctx, cellmap.Organization{ID: 7, Cell: "one"})))
	require.True(t, put(s.writer.PutLegacy(ctx, "one")))
	in := func(name topology.Cell) func() bool {
		return func() bool {
			cell, found := m.Organization(7)
			return found == (name != "") && cell == name
		}
	}
	until(t, m, in("one"))
	require.True(t, put(s.writer.PutOrganization(ctx, cellmap.Organization{ID: 7, Cell: "two"})))
	until(t, m, in("two"))
	require.True(t, put(s.writer.DeleteOrganization(ctx, 7)))
	until(t, m, in(""))
	require.False(t, put(s.writer.DeleteOrganization(ctx, 7)), "it is deleted already")
	require.False(t, put(s.writer.DeleteOrganization(ctx, 8)), "it was never there")
	require.True(t, put(s.writer.PutOrganization(ctx, cellmap.Organization{ID: 7, Cell: "one"})))
	until(t, m, in("one"))
	require.True(t, put(s.writer.DeleteCell(ctx, "two")))
	require.True(t, put(s.writer.DeleteLegacy(ctx)))
	until(t, m, func() bool {
		_, legacy := m.Legacy()
		return !legacy && len(m.Cells()) == 1
	})
}

func TestInvalidEntriesAreNotWritten(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	ctx := natstest.Context(t)
	invalid := cell("one")
	invalid.URL = "one"
	_, err := s.writer.PutCell(ctx, invalid)
	require.ErrorIs(t, err, cellmap.ErrInvalidEntry)
	_, err = s.writer.PutCell(ctx, cell("a.b"))
	require.ErrorIs(t, err, cellmap.ErrInvalidEntry)
	_, err = s.writer.PutOrganization(ctx, cellmap.Organization{ID: 0, Cell: "one"})
	require.ErrorIs(t, err, cellmap.ErrInvalidEntry)
	_, err = s.writer.PutLegacy(ctx, "")
	require.ErrorIs(t, err, cellmap.ErrInvalidEntry)
	require.Empty(t, s.follow(t).Cells())
}

// TestConcurrentWritersLoseNothing lets writers move one organization at the same time.
func TestConcurrentWritersLoseNothing(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	ctx := natstest.Context(t)
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			o := cellmap.Organization{ID: 7, Cell: topology.Cell(fmt.Sprintf("c%d", i))}
			_, err := s.writer.PutOrganization(ctx, o)
			if err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	m := s.follow(t)
	last, err := s.writer.JetStream.KeyValue(ctx, topology.BucketCells)
	require.NoError(t, err)
	entry, err := last.Get(ctx, "organization.7")
	require.NoError(t, err)
	require.Equal(t, uint64(4), entry.Revision(), "each write replaced the one before")
	var content struct {
		Cell topology.Cell `json:"cell"`
	}
	require.NoError(t, json.Unmarshal(entry.Value(), &content))
	name, _ := m.Organization(7)
	require.Equal(t, content.Cell, name)
}

// TestOlderEntryWithHigherRevisionChangesNothing stores an old entry again, as a failover of NATS may do.
func TestOlderEntryWithHigherRevisionChangesNothing(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	ctx := natstest.Context(t)
	m := s.follow(t)
	for _, name := range []topology.Cell{"one", "two"} {
		_, err := s.writer.PutOrganization(ctx, cellmap.Organization{ID: 7, Cell: name})
		require.NoError(t, err)
		until(t, m, func() bool { known, _ := m.Organization(7); return known == name })
	}
	_, err := s.writer.JetStream.PublishMsg(ctx, &nats.Msg{
		Subject: topology.CellsOrganization(7), Data: []byte(`{"generation":5,"cell":"one"}`),
	})
	require.NoError(t, err)
	_, err = s.writer.PutLegacy(ctx, "one")
	require.NoError(t, err)
	until(t, m, func() bool { _, found := m.Legacy(); return found })
	name, _ := m.Organization(7)
	require.Equal(t, topology.Cell("two"), name)
	// The next write is newer than what the failover lost.
	_, err = s.writer.PutOrganization(ctx, cellmap.Organization{ID: 7, Cell: "three"})
	require.NoError(t, err)
	until(t, m, func() bool { name, _ := m.Organization(7); return name == "three" })
}

// TestLastKnownMapStaysInForce stops NATS, and then loses its bucket.
func TestLastKnownMapStaysInForce(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	ctx := natstest.Context(t)
	_, err := s.writer.PutCell(ctx, cell("one"))
	require.NoError(t, err)
	_, err = s.writer.PutOrganization(ctx, cellmap.Organization{ID: 7, Cell: "one"})
	require.NoError(t, err)
	m := s.follow(t)
	require.NoError(t, m.Check(ctx))
	s.server.Down()
	require.Eventually(t, func() bool { return m.Check(ctx) != nil }, timeout, time.Millisecond)
	require.ErrorContains(t, m.Check(ctx), "stream KV_CELLS has not been read")
	require.Len(t, m.Cells(), 1)
	require.NoError(t, s.server.Restart())
	require.Eventually(t, func() bool { return m.Check(ctx) == nil }, timeout, time.Millisecond)

	natstest.Reconnected(t, s.writer.JetStream.Conn())
	require.NoError(t, s.writer.JetStream.DeleteStream(ctx, topology.StreamCells))
	require.NoError(t, topology.Ensure(ctx, s.writer.JetStream, home, topology.Options{StorageBytes: 100 << 20}))
	_, err = s.writer.PutCell(ctx, cell("two"))
	require.NoError(t, err)
	until(t, m, func() bool { return len(m.Cells()) == 2 })
	name, found := m.Organization(7)
	require.True(t, found)
	require.Equal(t, topology.Cell("one"), name)
}

// TestAnnouncerKeepsTheEntry loses the entry, and then changes what the cell wants.
func TestAnnouncerKeepsTheEntry(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	ctx := natstest.Context(t)
	m := s.follow(t)
	var mu sync.Mutex
	want, changed := cell("one"), make(chan struct{})
	announcer := cellmap.Announcer{
		Writer: s.writer, Logger: logger(t), Interval: 20 * time.Millisecond,
		Cell: func() cellmap.Cell {
			mu.Lock()
			defer mu.Unlock()
			return want
		},
		Changed: func() <-chan struct{} {
			mu.Lock()
			defer mu.Unlock()
			return changed
		},
	}
	ready := make(chan struct{})
	run(t, func(ctx context.Context) { announcer.Run(ctx, func() { close(ready) }) })
	select {
	case <-ready:
	case <-time.After(timeout):
		require.Fail(t, "the announcer is not ready")
	}
	until(t, m, func() bool { return len(m.Cells()) == 1 })
	_, err := s.writer.DeleteCell(ctx, "one")
	require.NoError(t, err)
	bucket, err := s.writer.JetStream.KeyValue(ctx, topology.BucketCells)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		entry, err := bucket.Get(ctx, "cell.one")
		return err == nil && strings.Contains(string(entry.Value()), "http://one:8080")
	}, timeout, time.Millisecond)
	mu.Lock()
	want.State = cellmap.Maintenance
	close(changed)
	changed = make(chan struct{})
	mu.Unlock()
	until(t, m, func() bool { c, _ := m.Cell("one"); return c.State == cellmap.Maintenance })
}

func TestInvalidConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	js := natstest.JetStream(t, natstest.Server(t))
	for name, cfg := range map[string]cellmap.Config{
		"JetStream": {Cell: home, Logger: logger(t)},
		"logger":    {Cell: home, JetStream: js},
		"cell":      {JetStream: js, Logger: logger(t), Cell: "A"},
		"probe":     {JetStream: js, Logger: logger(t), Cell: home, Probe: -1},
	} {
		_, err := cellmap.New(cfg)
		require.ErrorIs(t, err, cellmap.ErrInvalidConfig, name)
	}
}
