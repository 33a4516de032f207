package api

import (
	"archive/zip"
	"encoding/xml"
	"io"
	"slices"
	"strings"
	"testing"
)

// checkSheet reads an .xlsx file as a spreadsheet does: parts, types and relations that lead to the sheet, and its cells.
func checkSheet(t *testing.T, a answer, rows int) {
	t.Helper()
	if !strings.HasPrefix(a.header.Get("Content-Type"), "application/vnd.openxmlformats") || !strings.Contains(a.header.Get("Content-Disposition"), "tasks.xlsx") {
		t.Errorf("header %v", a.header)
	}
	file, err := zip.NewReader(strings.NewReader(a.body), int64(len(a.body)))
	if err != nil {
		t.Fatal(err)
	}
	part := func(name string, into any) {
		t.Helper()
		f, err := file.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		text, err := io.ReadAll(f)
		if err == nil {
			err = xml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var types struct {
		Override []struct {
			PartName string `xml:",attr"`
		}
	}
	part("[Content_Types].xml", &types)
	for _, o := range types.Override {
		if _, err := file.Open(strings.TrimPrefix(o.PartName, "/")); err != nil {
			t.Errorf("%s is announced: %v", o.PartName, err)
		}
	}
	var relations struct {
		Relationship []struct {
			Target string `xml:",attr"`
		}
	}
	part("_rels/.rels", &relations)
	if len(relations.Relationship) != 1 || relations.Relationship[0].Target != "xl/workbook.xml" {
		t.Errorf("relations %+v", relations)
	}
	var sheet struct {
		Rows []struct {
			Cells []struct {
				Type string `xml:"t,attr"`
				Text string `xml:"is>t"`
				V    string `xml:"v"`
			} `xml:"c"`
		} `xml:"sheetData>row"`
	}
	part("xl/worksheets/sheet1.xml", &sheet)
	if len(sheet.Rows) != rows {
		t.Fatalf("%d rows, want %d", len(sheet.Rows), rows)
	}
	var head, last []string
	for _, c := range sheet.Rows[0].Cells {
		head = append(head, c.Text)
	}
	for _, c := range sheet.Rows[rows-1].Cells {
		last = append(last, c.Type+":"+c.Text+c.V)
	}
	if strings.Join(head, " ") != "task_id args exception retry_count" {
		t.Errorf("head %q", head)
	}
	if !slices.Equal(last, []string{"inlineStr:=cmd()", `inlineStr:[1.50,"<b>"]`, ":", ":0"}) {
		t.Errorf("oldest row %q", last)
	}
}
