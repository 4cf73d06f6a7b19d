package meter

import (
	"slices"
	"time"
)

// day counts the last 24 hours in steps of an hour, so that a restart which reads these hours again comes to the same
// result.
type day struct {
	hours []hour // oldest first
	bytes int64  // of all hours
	// subjects has the hash of each subject with the begin of the last hour in which it occurred.
	subjects map[uint64]time.Time
}

// hour begins at a full hour.
type hour struct {
	begin time.Time
	bytes int64
}

// leaves returns the time at which all messages of the hour are older than a day.
func leaves(begin time.Time) time.Time { return begin.Add(time.Hour + Day) }

func (d *day) add(message Message, subject uint64) {
	begin := message.Stored.Truncate(time.Hour)
	if n := len(d.hours); n == 0 || d.hours[n-1].begin.Before(begin) {
		d.drop(message.Stored)
		d.hours = append(d.hours, hour{begin: begin})
	}
	newest := &d.hours[len(d.hours)-1]
	newest.bytes += int64(message.Bytes)
	d.bytes += int64(message.Bytes)
	d.subjects[subject] = newest.begin
}

// drop removes the hours that have left the day.
func (d *day) drop(now time.Time) {
	for len(d.hours) > 0 && !now.Before(leaves(d.hours[0].begin)) {
		d.bytes -= d.hours[0].bytes
		d.hours = d.hours[1:]
	}
	for subject, begin := range d.subjects {
		if !now.Before(leaves(begin)) {
			delete(d.subjects, subject)
		}
	}
}

// fits returns the time at which so many hours have left that the bytes are within the limit.
func (d *day) fits(limit int64) time.Time {
	bytes := d.bytes
	for _, h := range d.hours {
		if bytes -= h.bytes; bytes <= limit {
			return leaves(h.begin)
		}
	}
	return leaves(d.hours[len(d.hours)-1].begin)
}

// fewerSubjects returns the time at which so many subjects have left that their number is within the limit.
func (d *day) fewerSubjects(limit int) time.Time {
	begins := make([]time.Time, 0, len(d.subjects))
	for _, begin := range d.subjects {
		begins = append(begins, begin)
	}
	slices.SortFunc(begins, time.Time.Compare)
	return leaves(begins[len(begins)-limit-1])
}
