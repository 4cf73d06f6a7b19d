package postgres

import (
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
)

// PipelineChannel is the channel of notifications about pipelines that changed. The payload is the id.
const PipelineChannel = "lockstep_runners_pipelines"

// PipelineChanges is a LISTEN client for the ids of changed pipelines.
type PipelineChanges = postgres.ChangeListener[int64]

// NewPipelineChanges listens on [PipelineChannel].
func NewPipelineChanges(pool *pgxpool.Pool) *PipelineChanges {
	parse := func(payload string) (int64, error) { return strconv.ParseInt(payload, 10, 64) }
	return postgres.NewChangeListener(pool, PipelineChannel, parse)
}
