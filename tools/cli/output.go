package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"
)

const (
	outputTable = "table"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// table is the output for people.
type table struct {
	header []string
	rows   [][]string
}

// print prints the table, or with -o json|yaml the message.
func (a *app) print(message proto.Message, t table) error {
	if a.output == outputTable {
		return a.printTable(t)
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return a.printJSON(raw)
}

// printJSON prints JSON with indentation, or as YAML. It encodes the JSON again, since the white
// space of protojson varies.
func (a *app) printJSON(raw []byte) error {
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	var out []byte
	var err error
	if a.output == outputYAML {
		out, err = yaml.Marshal(value)
	} else {
		out, err = json.MarshalIndent(value, "", "  ")
		out = append(out, '\n')
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return a.write(string(out))
}

func (a *app) printTable(t table) error {
	if len(t.rows) == 0 {
		return a.note("nothing found")
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{t.header}, t.rows...) {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (a *app) write(text string) error {
	if _, err := fmt.Fprint(a.stdout, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// note prints a line to standard error.
func (a *app) note(format string, args ...any) error {
	if _, err := fmt.Fprintf(a.stderr, format+"\n", args...); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// age returns the time since t in one unit.
func age(t *timestamppb.Timestamp) string { return ageAt(time.Now(), t) }

func ageAt(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return "never"
	}
	d := now.Sub(t.AsTime())
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(max(0, d).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// enumName turns an enum value such as ACTUAL_STATE_CREATION_REQUESTED into CreationRequested.
func enumName(value, prefix string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(value, prefix), "_") {
		if part != "" {
			b.WriteString(part[:1] + strings.ToLower(part[1:]))
		}
	}
	return b.String()
}
