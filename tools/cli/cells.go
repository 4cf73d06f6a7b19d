package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

func (a *app) cells() *cobra.Command {
	var seedFile string
	g := group("cells", "Show and change the cell map: which cells there are, and which organization is in which cell",
		a.cellList(&seedFile), a.cellAdd(&seedFile), a.cellRemove(&seedFile), a.cellAssign(&seedFile),
		a.cellLegacy(&seedFile), a.cellMove(&seedFile), a.cellMoves())
	g.PersistentFlags().StringVar(&seedFile, "cells-seed-file", "",
		"key of the principal cells of the NATS that routers use; default: cells.seed beside the file of --nats-seed-file")
	return g
}

// withCells calls use with JetStream for the key of the cell map.
func (a *app) withCells(
	ctx context.Context, seedFile string, use func(context.Context, jetstream.JetStream) error,
) error {
	if seedFile == "" && a.client.NATSSeedFile != "" {
		seedFile = filepath.Join(filepath.Dir(a.client.NATSSeedFile), natsauth.PrincipalCells+".seed")
	}
	return a.withNATSAs(ctx, natsKey{natsauth.PrincipalCells, seedFile, "--cells-seed-file"}, use)
}

// cellEntry is a cell as `cells list` prints it.
type cellEntry struct {
	Name        string   `json:"name"`
	URL         string   `json:"url"`
	RedirectURL string   `json:"redirect_url,omitempty"`
	State       string   `json:"state"`
	Legacy      bool     `json:"legacy"`
	Keys        []string `json:"key_ids"`
	// Organizations whose requests go to the cell whatever their tokens say.
	Organizations []int64 `json:"organization_ids"`
}

func cellEntries(m *cellmap.Map) []cellEntry {
	entries := []cellEntry{}
	legacy, hasLegacy := m.Legacy()
	for _, c := range m.Cells() {
		e := cellEntry{
			Name: string(c.Name), URL: c.URL, RedirectURL: c.RedirectURL, State: string(c.State),
			Legacy: hasLegacy && legacy == c.Name, Keys: []string{}, Organizations: []int64{},
		}
		for _, key := range c.Keys {
			e.Keys = append(e.Keys, key.ID)
		}
		for _, o := range m.Organizations() {
			if o.Cell == c.Name {
				e.Organizations = append(e.Organizations, o.ID)
			}
		}
		entries = append(entries, e)
	}
	return entries
}

func (a *app) cellList(seedFile *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the cells, with the organizations that are assigned to them", Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			var entries []cellEntry
			err := a.withCells(c.Context(), *seedFile, func(ctx context.Context, js jetstream.JetStream) error {
				m, err := cellmap.Load(ctx, js, slog.New(slog.DiscardHandler))
				if err == nil {
					entries = cellEntries(m)
				}
				return err
			})
			if err != nil {
				return err
			}
			if a.output != outputTable {
				raw, err := json.Marshal(entries)
				if err != nil {
					return fmt.Errorf("print: %w", err)
				}
				return a.printJSON(raw)
			}
			t := table{header: []string{"NAME", "STATE", "URL", "KEYS", "ORGANIZATIONS", "LEGACY"}}
			for _, e := range entries {
				t.rows = append(t.rows, []string{
					e.Name, e.State, e.URL, strconv.Itoa(len(e.Keys)), joinIDs(e.Organizations), yesOrEmpty(e.Legacy),
				})
			}
			return a.printTable(t)
		},
	}
}

func joinIDs(ids []int64) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(texts, ", ")
}

func (a *app) cellAdd(seedFile *string) *cobra.Command {
	cell := cellmap.Cell{State: cellmap.Active}
	var maintenance bool
	c := &cobra.Command{
		Use: "add NAME", Short: "Add a cell that has no runners service of its own, such as a GitLab installation",
		Args: exactly("NAME"),
		Long: `Add a cell to the map, or change it. A cell of Lockstep adds itself: its runners service writes the entry, with
the keys of its job tokens. Add others, such as the GitLab installation that serves old tokens.`,
		Example: "  lockstep cells add gitlab --url https://gitlab.example.org\n  lockstep cells legacy gitlab",
		RunE: func(c *cobra.Command, args []string) error {
			cell.Name = topology.Cell(args[0])
			if maintenance {
				cell.State = cellmap.Maintenance
			}
			if err := cell.Validate(); err != nil {
				return fault.Wrap(err, errcode.InvalidArgument, "cell %s: %v", args[0], err)
			}
			return a.changeCells(c.Context(), *seedFile, "cell "+args[0], func(
				ctx context.Context, w cellmap.Writer,
			) (bool, error) {
				return w.PutCell(ctx, cell)
			})
		},
	}
	c.Flags().StringVar(&cell.URL, "url", "", "where routers reach it, such as https://gitlab.example.org")
	c.Flags().StringVar(&cell.RedirectURL, "redirect-url", "",
		"where clients reach it without a router: routers then redirect requests to it")
	c.Flags().BoolVar(&maintenance, "maintenance", false, "routers answer for it: try again later")
	return c
}

func (a *app) cellRemove(seedFile *string) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a cell; requests for it are refused", Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := topology.ValidateCell(args[0]); err != nil {
				return fault.Wrap(err, errcode.InvalidArgument, "%v", err)
			}
			return a.changeCells(c.Context(), *seedFile, "cell "+args[0], func(
				ctx context.Context, w cellmap.Writer,
			) (bool, error) {
				return w.DeleteCell(ctx, topology.Cell(args[0]))
			})
		},
	}
}

func (a *app) cellAssign(seedFile *string) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "assign ORGANIZATION", Short: "Assign an organization to a cell, whatever its tokens say", Args: exactly("ID"),
		Long: `Assign an organization to a cell: routers send requests with its tokens there at once. Nothing is copied: the
cell must know its runners. Without --to, its requests go to the cell that their token names.`,
		Example: "  lockstep cells assign 7 --to eu-2",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || id <= 0 {
				return fault.New(errcode.InvalidArgument, "organization %q is not an id", args[0])
			}
			return a.changeCells(c.Context(), *seedFile, "organization "+args[0], func(
				ctx context.Context, w cellmap.Writer,
			) (bool, error) {
				if to == "" {
					return w.DeleteOrganization(ctx, id)
				}
				if err := topology.ValidateCell(to); err != nil {
					return false, fault.Wrap(err, errcode.InvalidArgument, "--to: %v", err)
				}
				return w.PutOrganization(ctx, cellmap.Organization{ID: id, Cell: topology.Cell(to)})
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "name of the cell; default: none")
	return c
}

func (a *app) cellLegacy(seedFile *string) *cobra.Command {
	var none bool
	c := &cobra.Command{
		Use: "legacy [NAME]", Short: "Set the cell of requests whose token names none", Args: atMost("NAME"),
		Example: "  lockstep cells legacy gitlab\n  lockstep cells legacy --none",
		RunE: func(c *cobra.Command, args []string) error {
			if none == (len(args) == 1) {
				return fault.New(errcode.InvalidArgument, "name a cell, or set --none")
			}
			return a.changeCells(c.Context(), *seedFile, "the legacy cell", func(
				ctx context.Context, w cellmap.Writer,
			) (bool, error) {
				if none {
					return w.DeleteLegacy(ctx)
				}
				if err := topology.ValidateCell(args[0]); err != nil {
					return false, fault.Wrap(err, errcode.InvalidArgument, "%v", err)
				}
				return w.PutLegacy(ctx, topology.Cell(args[0]))
			})
		},
	}
	c.Flags().BoolVar(&none, "none", false, "refuse such requests")
	return c
}

// changeCells changes an entry and notes what happened.
func (a *app) changeCells(
	ctx context.Context, seedFile, what string, change func(context.Context, cellmap.Writer) (bool, error),
) error {
	var changed bool
	err := a.withCells(ctx, seedFile, func(ctx context.Context, js jetstream.JetStream) error {
		var err error
		changed, err = change(ctx, cellmap.Writer{JetStream: js})
		return err
	})
	switch {
	case err != nil:
		return err
	case changed:
		return a.note("%s: the cell map is changed", what)
	default:
		return a.note("%s: the cell map is like that already", what)
	}
}
