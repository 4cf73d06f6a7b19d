package trace

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxSections bounds the nesting. Sections within are shown as text.
	maxSections = 64
	// maxHeading bounds a heading in bytes.
	maxHeading = 512
	// maxHidden bounds the lines of a collapsed section that are kept in bytes. They are shown if it does not end.
	maxHidden = 64 << 10

	styleHeading = "\x1b[1m"
	styleFaint   = "\x1b[2m"
)

// section is a section that has not ended.
type section struct {
	name    string
	title   string
	began   time.Time
	hideAll bool
}

// sections are those that have not ended, the outermost first.
type sections struct {
	open []*section
	// heading is the section whose heading is the rest of the line.
	heading *section
	// collapsed is the outermost section whose lines are hidden, hidden their end, and lines their number.
	collapsed *section
	hidden    strings.Builder
	lines     int
	// cut: hidden lacks the first lines.
	cut bool
}

func (s *sections) addHeading(text string) {
	if len(s.heading.title)+len(text) <= maxHeading {
		s.heading.title += text
	}
}

func (s *sections) count() {
	if s.collapsed != nil {
		s.lines++
	}
}

// hide keeps the newest text.
func (s *sections) hide(text string) {
	s.hidden.WriteString(text)
	if s.hidden.Len() <= 2*maxHidden {
		return
	}
	kept := s.hidden.String()[s.hidden.Len()-maxHidden:]
	if _, whole, found := strings.Cut(kept, "\n"); found {
		kept = whole
	}
	s.hidden.Reset()
	s.hidden.WriteString(strings.ToValidUTF8(kept, ""))
	s.cut = true
}

// take removes the innermost section with a name and those within it.
func (s *sections) take(name string) *section {
	for i, found := range slices.Backward(s.open) {
		if found.name == name {
			s.open = s.open[:i]
			return found
		}
	}
	return nil
}

// mark takes a marker.
func (w *Writer) mark(m marker) {
	s := &w.sections
	if s.heading != nil {
		w.showHeading()
	}
	if !w.options.Terminal {
		return
	}
	if m.start {
		if len(s.open) < maxSections {
			s.heading = &section{name: m.name, began: m.at, hideAll: m.collapsed && !w.options.Full}
			s.open = append(s.open, s.heading)
		}
		return
	}
	ended := s.take(m.name)
	if ended == nil {
		return
	}
	took := Span(m.at.Sub(ended.began))
	if s.collapsed != nil && !s.contains(s.collapsed) {
		collapsed, lines := s.collapsed, s.lines
		w.uncollapse()
		if collapsed != ended {
			took = "" // the end of the section is missing
		}
		w.own(styleHeading, "▸ "+collapsed.title, strings.TrimPrefix(took+", "+plural(lines), ", "))
		return
	}
	if s.collapsed == nil {
		w.own("", "", "└ "+took)
	}
}

func (s *sections) contains(one *section) bool {
	return slices.Contains(s.open, one)
}

// showHeading ends a heading.
func (w *Writer) showHeading() {
	s := &w.sections
	started := s.heading
	s.heading = nil
	started.title = strings.TrimSpace(started.title)
	if started.title == "" {
		started.title = started.name
	}
	switch {
	case s.collapsed != nil:
		s.count()
		s.hide(started.title + "\n")
	case started.hideAll:
		w.freshLine()
		w.resetStyle()
		s.collapsed, s.lines, s.cut = started, 0, false
	default:
		w.own(styleHeading, "▾ "+started.title, "")
	}
}

// uncollapse shows lines again.
func (w *Writer) uncollapse() {
	w.sections.collapsed = nil
	w.sections.hidden.Reset()
	w.filled = false
	w.resetStyle()
}

// closeSections shows the lines of a collapsed section without an end: the reason of a failure may be there.
func (w *Writer) closeSections() {
	s := &w.sections
	if s.heading != nil {
		w.showHeading()
	}
	if s.collapsed == nil {
		return
	}
	title, text := s.collapsed.title, s.hidden.String()
	if s.cut {
		text = "…\n" + text
	}
	filled := w.filled
	w.uncollapse()
	w.own(styleHeading, "▾ "+title, "")
	w.raw(text)
	w.filled = filled
	w.styled = w.options.Colour
}

// own writes a line of the Writer itself.
func (w *Writer) own(style, text, faint string) {
	w.freshLine()
	w.resetStyle()
	if text != "" {
		w.raw(w.paint(style, text))
	}
	if faint != "" {
		if text != "" {
			w.raw("  ")
		}
		w.raw(w.paint(styleFaint, faint))
	}
	w.raw("\n")
	w.filled, w.marked, w.returned = false, true, false
}

// freshLine ends a line that has text.
func (w *Writer) freshLine() {
	if w.filled {
		w.raw("\n")
		w.filled = false
	}
}

func (w *Writer) paint(style, text string) string {
	if !w.options.Colour {
		return text
	}
	return style + text + noStyle
}

func plural(lines int) string {
	if lines == 1 {
		return "1 line"
	}
	return fmt.Sprintf("%d lines", lines)
}
