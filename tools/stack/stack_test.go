package stack

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

func TestStartFailsAtOnceWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	_, err := Start(t.Context(), Options{
		Dir: t.TempDir(), DatabaseURL: "postgres://lockstep:secret@127.0.0.1:1/lockstep", Progress: &progress,
	})
	require.Equal(t, errcode.Unavailable, fault.From(err).Code)
	require.Equal(t, "cannot use PostgreSQL at postgres://lockstep:xxxxx@127.0.0.1:1/lockstep: no program listens there",
		fault.From(err).Message)
	require.Empty(t, progress.String(), "nothing was started")
}
