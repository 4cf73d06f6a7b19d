package postgres_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestListenersShareOneConnection(t *testing.T) {
	t.Parallel()
	pool := connect(t, postgres.Config{URL: pgtest.Database(t)})
	ints := postgres.NewChangeListener(pool, "Numbers", strconv.Atoi)
	texts := postgres.NewChangeListener(pool, "texts", func(text string) (string, error) { return text, nil })
	number, text := ints.Subscribe(), texts.Subscribe()
	defer number.Close()
	defer text.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- postgres.Listen(ctx, pool, func() { close(ready) }, ints, texts) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	<-ready
	_, all := number.Take()
	require.True(t, all)
	_, all = text.Take()
	require.True(t, all)

	for _, sql := range []string{`NOTIFY "Numbers", 'none'`, `NOTIFY texts, 'a'`, `NOTIFY "Numbers", '7'`} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"a"}, next(t, text))
	require.Equal(t, []int{7}, next(t, number))
	require.Equal(t, 1, scan[int](t, pool, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND query ILIKE 'listen%'`))
}

// next waits for a change and returns the ids that changed.
func next[ID comparable](t *testing.T, s *postgres.Subscription[ID]) []ID {
	t.Helper()
	for {
		if ids, all := s.Take(); len(ids) > 0 {
			require.False(t, all)
			return ids
		}
		select {
		case <-s.Changed():
		case <-time.After(time.Minute):
			require.FailNow(t, "no notification")
		}
	}
}
