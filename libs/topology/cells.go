package topology

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// BucketCells is the key-value bucket of the cell map: which cells there are, and which organization is where.
// StreamCells is its stream. Package cellmap reads and writes it.
const (
	BucketCells = "CELLS"
	StreamCells = "KV_" + BucketCells
)

// FamilyCellsLive is the family to which the server republishes the entries of [BucketCells], without their data.
const FamilyCellsLive = "cells_live"

const (
	cellsPrefix       = "$KV." + BucketCells + "."
	cellsOrganization = cellsPrefix + "organization."
	cellsCell         = cellsPrefix + "cell."
	cellsMoved        = cellsPrefix + "moved."
	// CellsEntries matches the subjects of all entries of [BucketCells].
	CellsEntries = cellsPrefix + ">"
	// CellsLegacy is the subject of the entry that names the cell of unknown and old tokens.
	CellsLegacy = cellsPrefix + "legacy"
	// MaxCellsEntry is the largest entry in bytes, headers included.
	MaxCellsEntry = 16 << 10
	// maxCellsEntries bounds the number of organizations and cells.
	maxCellsEntries = 1_000_000
)

// CellsCell is the subject of the entry of one cell.
func CellsCell(name Cell) string { return cellsCell + string(name) }

// CellsOrganization is the subject of the entry of one organization.
func CellsOrganization(id int64) string { return cellsOrganization + strconv.FormatInt(id, 10) }

// CellsMoved is the subject of the entry with which a cell announces where an organization went that it had.
func CellsMoved(from Cell, organization int64) string {
	return cellsMoved + string(from) + "." + strconv.FormatInt(organization, 10)
}

// CellsMovedFrom matches the subjects of all organizations that one cell had.
func CellsMovedFrom(from Cell) string { return cellsMoved + string(from) + ".*" }

// CellsCells, CellsOrganizations and CellsMoves match the subjects of all cells, of all organizations and of all that
// were moved.
const (
	CellsMoves         = cellsMoved + "*.*"
	CellsCells         = cellsCell + "*"
	CellsOrganizations = cellsOrganization + "*"
)

// cellsConfig is the stream of [BucketCells]. It reserves no storage: an entry has some hundred bytes. A purge marker
// or a rollup could remove the entries of others, so both are off.
func cellsConfig(cell Cell, opts Options) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              StreamCells,
		Description:       "Which cells there are, and which organization is in which cell.",
		Subjects:          []string{CellsEntries},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, opts.Replicas),
		MaxMsgs:           maxCellsEntries,
		MaxBytes:          -1,
		MaxMsgsPerSubject: 1,
		MaxMsgSize:        MaxCellsEntry,
		MaxConsumers:      maxConsumers,
		Discard:           jetstream.DiscardNew,
		Duplicates:        2 * time.Minute,
		AllowDirect:       true,
		RePublish: &jetstream.RePublish{
			Source: CellsEntries, Destination: cell.All(FamilyCellsLive), HeadersOnly: true,
		},
		Metadata: map[string]string{versionKey: strconv.Itoa(Version)},
	}
}
