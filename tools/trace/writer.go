package trace

import (
	"bytes"
	"fmt"
	"io"
	"strconv"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Options choose how a Writer shows a trace.
type Options struct {
	// Terminal shows sections with headings, hides the lines of collapsed sections, and lets a line replace itself, as
	// bars of progress do.
	Terminal bool
	// Colour passes on the colours of the trace.
	Colour bool
	// Full shows the lines of collapsed sections, too.
	Full bool
}

const (
	// maxData is the size of the arguments of an escape sequence that the parser stores.
	maxData = 256
	// clearLine moves to the begin of the line and erases it.
	clearLine = "\r\x1b[K"
	noStyle   = "\x1b[0m"
)

// Writer shows a trace. Parts of it may be split anywhere. The caller calls Close at the end.
type Writer struct {
	out     io.Writer
	options Options
	// input replaces bytes that are not UTF-8, and calls parser.
	input  *transform.Writer
	parser *ansi.Parser
	// ready is what the current Write has for out.
	ready bytes.Buffer

	// pending is the begin of a line that may be a marker.
	pending []byte
	// begin: no text follows the last line end, carriage return or marker.
	begin bool
	// returned: a carriage return was the last character.
	returned bool
	// marked: only markers are on the line.
	marked bool
	// filled: the line in out has text.
	filled bool
	// styled: the trace has set a style.
	styled bool

	sections sections
}

// NewWriter returns a Writer to out.
func NewWriter(out io.Writer, options Options) *Writer {
	w := &Writer{out: out, options: options, parser: ansi.NewParser(), begin: true}
	w.parser.SetDataSize(maxData)
	w.parser.SetHandler(ansi.Handler{Print: w.print, Execute: w.execute, HandleCsi: w.sequence})
	w.input = transform.NewWriter(parserWriter{w.parser}, unicode.UTF8.NewDecoder())
	return w
}

// parserWriter passes bytes to a parser.
type parserWriter struct{ parser *ansi.Parser }

func (p parserWriter) Write(text []byte) (int, error) {
	for _, b := range text {
		p.parser.Advance(b)
	}
	return len(text), nil
}

// Write shows the next part of the trace. The begin of a line is held back while it may be a marker.
func (w *Writer) Write(part []byte) (int, error) {
	n, err := w.input.Write(part)
	if err != nil {
		return n, fmt.Errorf("decode the trace: %w", err)
	}
	return n, w.flush()
}

// Close shows the rest of the trace, and resets the style of the terminal. It does not close the output.
func (w *Writer) Close() error {
	if err := w.input.Close(); err != nil {
		return fmt.Errorf("decode the trace: %w", err)
	}
	w.release()
	w.closeSections()
	if w.options.Terminal && w.filled {
		w.raw("\n")
	}
	w.resetStyle()
	return w.flush()
}

func (w *Writer) flush() error {
	defer w.ready.Reset()
	if w.ready.Len() == 0 {
		return nil
	}
	if _, err := w.out.Write(w.ready.Bytes()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// print takes a character.
func (w *Writer) print(r rune) {
	if hidden(r) {
		return
	}
	if w.begin {
		w.pending = append(w.pending, string(r)...)
		if !mayBeMarker(string(w.pending)) {
			w.release()
		}
		return
	}
	w.text(string(r))
}

// release shows the begin of a line that is not a marker.
func (w *Writer) release() {
	if len(w.pending) == 0 {
		return
	}
	text := string(w.pending)
	w.pending = w.pending[:0]
	w.begin = false
	w.text(text)
}

// execute takes a control character. All but line ends, tabs and carriage returns are dropped.
func (w *Writer) execute(b byte) {
	switch b {
	case '\n':
		w.release()
		w.newline()
	case '\t':
		w.release()
		w.begin = false
		w.text("\t")
	case '\r':
		if m, ok := parseMarker(string(w.pending)); ok {
			w.pending = w.pending[:0]
			w.begin, w.marked = true, true
			w.mark(m)
			return
		}
		w.release()
		w.begin, w.returned = true, true
	}
}

// sequence takes a control sequence. All but those of styles are dropped.
func (w *Writer) sequence(command ansi.Cmd, parameters ansi.Params) {
	if !w.options.Colour || command.Final() != 'm' || command.Prefix() != 0 || command.Intermediate() != 0 ||
		w.sections.heading != nil {
		return
	}
	w.release()
	text := []byte("\x1b[")
	w.styled = false
	for i, p := range parameters {
		if value := p.Param(-1); value >= 0 {
			text = strconv.AppendInt(text, int64(value), 10)
			w.styled = value != 0
		} else {
			w.styled = false
		}
		switch {
		case i == len(parameters)-1:
		case p.HasMore():
			text = append(text, ':')
		default:
			text = append(text, ';')
		}
	}
	w.raw(string(append(text, 'm')))
}

// text shows characters of a line.
func (w *Writer) text(text string) {
	if w.sections.heading != nil {
		w.sections.addHeading(text)
		return
	}
	if w.returned && w.filled {
		if w.options.Terminal && w.sections.collapsed == nil {
			w.raw(clearLine)
		} else {
			w.raw("\n")
		}
	}
	w.returned, w.filled, w.marked = false, true, false
	w.raw(text)
}

// newline ends a line. A line of markers only is none.
func (w *Writer) newline() {
	if w.sections.heading != nil {
		w.showHeading()
	} else if !w.marked || w.filled {
		w.sections.count()
		w.raw("\n")
	}
	w.begin, w.returned, w.marked, w.filled = true, false, false, false
}

// raw adds to the output, or to the lines of a collapsed section.
func (w *Writer) raw(text string) {
	if w.sections.collapsed != nil {
		w.sections.hide(text)
		return
	}
	w.ready.WriteString(text)
}

func (w *Writer) resetStyle() {
	if w.styled {
		w.raw(noStyle)
		w.styled = false
	}
}
