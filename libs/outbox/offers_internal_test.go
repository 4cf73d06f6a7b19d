package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOffersAreTakenWhileFreshAndWanted(t *testing.T) {
	t.Parallel()
	now := time.Now()
	made := offer{rows: []row{{id: 1}, {id: 2}}, at: now}
	o := newOffers()

	o.add(made)
	require.Empty(t, o.take(now), "nobody publishes here")

	o.open()
	o.add(made)
	require.Len(t, o.take(now.Add(freshFor-1)), 2)
	require.Empty(t, o.take(now))
	o.add(made)
	require.Empty(t, o.take(now.Add(freshFor)), "the process may have stopped meanwhile")

	for range maxOffers + 1 {
		o.add(made)
	}
	require.Len(t, o.take(now), 2*maxOffers)

	o.add(made)
	o.close()
	o.open()
	require.Empty(t, o.take(now), "what was offered to a session before is found in the database")
}
