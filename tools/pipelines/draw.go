package pipelines

import (
	"fmt"
	"strings"
	"time"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/trace"
)

// Page is the size of the terminal.
type Page struct {
	// Width and Height in characters. Lines are never wider, and never more, except that there is always one.
	Width, Height int
	// Colour enables colours.
	Colour bool
}

// gap is the number of spaces between columns of stages.
const gap = 3

// Lines draws a pipeline: a line about the whole, the jobs by stage, and why jobs failed. The stages are columns if the
// page is wide enough, and rows otherwise. If the page is too low, stages that ended take one line, then those that
// have not started. The last line counts the jobs that do not fit.
func Lines(p *runnersv1.Pipeline, page Page, now time.Time) []string {
	stages := stagesOf(p)
	lines := []string{page.title(p, now)}
	body, shown := page.columns(stages, now), len(p.GetJobs())
	if body == nil || 1+len(body) > page.Height {
		body, shown = page.rows(stages, now, page.Height-1)
	}
	lines = append(lines, body...)
	if shown == len(p.GetJobs()) {
		for _, why := range page.failures(p) {
			if len(lines) < page.Height {
				lines = append(lines, why)
			}
		}
	} else if len(lines) < page.Height {
		lines = append(lines, page.paint(colourFaint, fit("and "+more(len(p.GetJobs())-shown), page.Width)))
	}
	return lines
}

func more(n int) string {
	if n == 1 {
		return "1 more job"
	}
	return fmt.Sprintf("%d more jobs", n)
}

// stage is the jobs of a stage.
type stage struct {
	name string
	jobs []*runnersv1.Job
}

func stagesOf(p *runnersv1.Pipeline) []stage {
	var stages []stage
	index := map[string]int{}
	for _, name := range p.GetStages() {
		index[name] = len(stages)
		stages = append(stages, stage{name: name})
	}
	for _, j := range p.GetJobs() {
		at, known := index[j.GetStage()]
		if !known {
			at = len(stages)
			index[j.GetStage()] = at
			stages = append(stages, stage{name: j.GetStage()})
		}
		stages[at].jobs = append(stages[at].jobs, j)
	}
	return stages
}

// title is the line about the whole pipeline.
func (p Page) title(pipeline *runnersv1.Pipeline, now time.Time) string {
	symbol, colour := mark(runnersv1.JobState(pipeline.GetState()), pipeline.GetWarnings() && succeeded(pipeline))
	text := fmt.Sprintf("pipeline %d  %s", pipeline.GetId(), State(pipeline))
	if pipeline.GetWarnings() {
		text += " with warnings"
	}
	finished := 0
	for _, j := range pipeline.GetJobs() {
		if JobEnded(j) {
			finished++
		}
	}
	text += fmt.Sprintf("  %s  %d of %s", trace.Span(Age(pipeline, now)), finished, jobs(len(pipeline.GetJobs())))
	if ref := trace.Line(pipeline.GetRef()); ref != "" {
		text += "  " + ref
	}
	if pipeline.GetProtected() {
		text += "  protected"
	}
	return p.marked(symbol, colour, p.paint(colourBold, fit(text, p.Width-2)))
}

func succeeded(p *runnersv1.Pipeline) bool {
	return p.GetState() == runnersv1.PipelineState_PIPELINE_STATE_SUCCESS
}

// marked puts a symbol before a text that fits.
func (p Page) marked(symbol, colour, text string) string {
	return fit(p.paint(colour, symbol)+" "+text, p.Width)
}

// job returns the symbol, the name and the duration of a job.
func (p Page) job(j *runnersv1.Job, now time.Time) (text string) {
	symbol, colour := mark(j.GetState(), j.GetFailureAllowed())
	text = p.paint(colour, symbol) + " " + trace.Line(j.GetName())
	if j.GetAttempt() > 1 {
		text += p.paint(colourFaint, fmt.Sprintf(" #%d", j.GetAttempt()))
	}
	if j.GetStartedAt() != nil {
		text += p.paint(colourFaint, "  "+trace.Span(Took(j, now)))
	}
	return text
}

// columns draws stages side by side; nil if they do not fit.
func (p Page) columns(stages []stage, now time.Time) []string {
	if len(stages) < 2 {
		return nil
	}
	cells, widths, height, total := make([][]string, len(stages)), make([]int, len(stages)), 0, -gap
	for i, s := range stages {
		cells[i] = append(cells[i], p.paint(colourFaint, trace.Line(s.name)))
		for _, j := range s.jobs {
			cells[i] = append(cells[i], p.job(j, now))
		}
		for _, cell := range cells[i] {
			widths[i] = max(widths[i], columns(cell))
		}
		height = max(height, len(cells[i]))
		total += widths[i] + gap
	}
	if total > p.Width {
		return nil
	}
	lines := make([]string, 0, height)
	for row := range height {
		var b strings.Builder
		spaces := 0
		for i, column := range cells {
			if row < len(column) {
				b.WriteString(strings.Repeat(" ", spaces) + column[row])
				spaces = widths[i] - columns(column[row]) + gap
			} else {
				spaces += widths[i] + gap
			}
		}
		lines = append(lines, b.String())
	}
	return lines
}

// rows draws each stage below the one before in at most height lines. shown is the number of jobs that have a part in
// them. If it is not all of them, there is one line less.
func (p Page) rows(stages []stage, now time.Time, height int) (lines []string, shown int) {
	short := p.shorten(stages, height)
	drawn := func(budget int) (lines []string, shown int) {
		for i, s := range stages {
			block, each := p.stageRows(s, now, short[i])
			for n, line := range block {
				if len(lines) == budget {
					return lines, shown
				}
				lines = append(lines, line)
				switch {
				case short[i]:
					shown += len(s.jobs)
				case n > 0:
					shown += each
				}
			}
		}
		return lines, shown
	}
	total := 0
	for _, s := range stages {
		total += len(s.jobs)
	}
	if lines, shown = drawn(max(0, height)); shown < total {
		lines, shown = drawn(max(0, height-1))
	}
	return lines, shown
}

// shorten chooses the stages that take one line.
func (p Page) shorten(stages []stage, height int) []bool {
	short, total := make([]bool, len(stages)), 0
	for _, s := range stages {
		total += 1 + len(s.jobs)
	}
	for _, wanted := range []func(stage) bool{settled, waiting} {
		for i, s := range stages {
			if total > height && !short[i] && wanted(s) {
				short[i] = true
				total -= len(s.jobs)
			}
		}
	}
	return short
}

// settled reports whether all jobs of a stage have ended, and none failed.
func settled(s stage) bool {
	for _, j := range s.jobs {
		if !JobEnded(j) || j.GetState() == runnersv1.JobState_JOB_STATE_FAILED {
			return false
		}
	}
	return true
}

// waiting reports whether no job of a stage has started.
func waiting(s stage) bool {
	for _, j := range s.jobs {
		if j.GetStartedAt() != nil || j.GetState() == runnersv1.JobState_JOB_STATE_FAILED {
			return false
		}
	}
	return true
}

// stageRows draws one stage. each is the number of jobs of a line after the first.
func (p Page) stageRows(s stage, now time.Time, short bool) (lines []string, each int) {
	name := trace.Line(s.name)
	if short {
		symbol, colour := "·", colourFaint
		if settled(s) {
			symbol, colour = "✓", colourGood
		}
		return []string{p.marked(symbol, colour, name+p.paint(colourFaint, "  "+jobs(len(s.jobs))))}, 0
	}
	lines = append(lines, p.paint(colourFaint, fit(name, p.Width)))
	for _, j := range s.jobs {
		lines = append(lines, fit("  "+p.job(j, now), p.Width))
	}
	return lines, 1
}

// failures tells why jobs failed.
func (p Page) failures(pipeline *runnersv1.Pipeline) []string {
	var lines []string
	for _, j := range pipeline.GetJobs() {
		if why := Why(j); why != "" {
			symbol, colour := mark(j.GetState(), j.GetFailureAllowed())
			lines = append(lines, p.marked(symbol, colour, trace.Line(j.GetName())+": "+why))
		}
	}
	return lines
}

// Why returns why a job failed; empty if it did not.
func Why(j *runnersv1.Job) string {
	if j.GetState() != runnersv1.JobState_JOB_STATE_FAILED {
		return ""
	}
	if message := trace.Line(j.GetMessage()); message != "" {
		return message
	}
	return trace.Line(j.GetReason())
}

func (p Page) paint(colour, text string) string {
	if !p.Colour || text == "" {
		return text
	}
	return colour + text + colourNone
}
